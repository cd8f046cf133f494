"""What executors read from optimizers: values, constness, changes, surprises."""

import logging

import pytest
import torch
from torch import nn

from pantile import optim
from pantile.errors import OptimizerTypeError
from pantile.optim.attributes import AttributeWatch, read_attributes
from pantile.optim.supported import check_supported
from pantile.optim.variable_attributes import VariableAttributes


def params():
    return [nn.Parameter(torch.ones(2))]


def constants(optimizer):
    """Names of the constant attributes of the first group."""
    (group, *_) = read_attributes(optimizer).groups
    return {name for name, attribute in group.items() if attribute.constant}


def test_an_attribute_is_variable_if_it_was_given():
    optimizer = optim.Adam(params(), betas=(0.9, 0.99), weight_decay=0.0)

    attributes = read_attributes(optimizer)

    assert {"lr", "eps"} <= constants(optimizer)
    assert not {"betas", "weight_decay"} & constants(optimizer)
    assert attributes.globals["loss_scaling"].constant


def test_an_attribute_can_be_marked():
    optimizer = optim.SGD(params(), lr=0.1)

    optimizer.variable_attrs.markAsConstant("lr")
    optimizer.variable_attrs.markAsVariable("momentum")

    assert "lr" in constants(optimizer)
    assert "momentum" not in constants(optimizer)


@pytest.mark.parametrize("method", ["isConstant", "markAsConstant", "markAsVariable"])
def test_an_unknown_attribute_cannot_be_marked(method):
    attributes = VariableAttributes(["lr"], ["lr", "momentum"])

    with pytest.raises(AssertionError, match="'speed'"):
        getattr(attributes, method)("speed")


@pytest.mark.parametrize(
    ("make", "constant", "variable"),
    [
        (
            lambda: torch.optim.SGD(params(), lr=0.1),
            {"momentum", "dampening", "weight_decay", "nesterov"},
            {"lr"},
        ),
        (
            lambda: torch.optim.SGD(params(), lr=0.1, momentum=0.9, weight_decay=0.1),
            {"dampening", "nesterov"},
            {"lr", "momentum", "weight_decay"},
        ),
        (
            lambda: torch.optim.Adam(params(), betas=(0.5, 0.5)),
            {"betas", "eps", "weight_decay"},
            {"lr"},
        ),
        (lambda: torch.optim.Adam(params(), eps=1e-5), {"betas"}, {"lr", "eps"}),
        (lambda: torch.optim.AdamW(params()), {"weight_decay", "eps"}, {"lr"}),
        (lambda: torch.optim.AdamW(params(), weight_decay=0.0), {"eps"}, {"weight_decay"}),
        (lambda: torch.optim.RMSprop(params(), alpha=0.5), {"alpha", "momentum"}, {"lr"}),
    ],
)
def test_for_a_torch_optimizer_the_value_decides(make, constant, variable):
    found = constants(make())

    assert constant <= found
    assert not variable & found


def test_automatic_loss_scaling_makes_the_loss_scaling_variable():
    optimizer = torch.optim.SGD(params(), lr=0.1)

    attributes = read_attributes(optimizer, automatic_loss_scaling=True)

    assert not attributes.globals["loss_scaling"].constant


def test_two_optimizers_with_the_same_values_read_the_same():
    first, second = optim.Adam(params(), lr=0.1), optim.Adam(params(), lr=torch.tensor(0.1).item())
    second.param_groups[0]["lr"] = 0.1

    assert read_attributes(first) == read_attributes(first)
    assert read_attributes(second).groups == read_attributes(first).groups


def test_a_changed_value_reads_different_but_has_the_same_structure():
    optimizer = torch.optim.SGD(params(), lr=0.1, momentum=0.9)
    before = read_attributes(optimizer)

    optimizer.param_groups[0].update(lr=0.0, momentum=0.5)
    after = read_attributes(optimizer)

    assert after != before
    assert after.structure == before.structure


@pytest.mark.parametrize("change", [{"momentum": 0}, {"nesterov": True}, {"maximize": True}])
def test_what_changes_the_rule_changes_the_structure(change):
    optimizer = torch.optim.SGD(params(), lr=0.1, momentum=0.9)
    before = read_attributes(optimizer)

    optimizer.param_groups[0].update(change)

    assert read_attributes(optimizer).structure != before.structure


def test_a_tensor_learning_rate_reads_as_a_number():
    optimizer = torch.optim.SGD(params(), lr=torch.tensor(0.5))

    assert read_attributes(optimizer).groups[0]["lr"].value == 0.5


def test_the_type_is_the_rule_whichever_library_it_is_from():
    assert read_attributes(torch.optim.AdamW(params())).type_name == "AdamW"
    assert read_attributes(optim.AdamW(params())).type_name == "AdamW"
    assert read_attributes(torch.optim.Adagrad(params())).type_name == "Adagrad"


def test_new_attributes_are_warned_about_once(caplog):
    first = torch.optim.SGD(params(), lr=0.1)
    watch = AttributeWatch(first)
    later = torch.optim.SGD(params(), lr=0.1)
    later.param_groups[0]["initial_lr"] = 0.1
    later.defaults["speed"] = 3
    later.colour = "red"

    watch.check(later)
    watch.check(later)

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert any("unexpected group 0 attribute" in m and "initial_lr" in m for m in messages)
    assert any("unexpected optimizer attribute" in m and "colour" in m for m in messages)
    assert any("default group variable" in m and "speed" in m for m in messages)


def test_relaxed_checks_speak_at_debug_level_only(caplog):
    caplog.set_level(logging.DEBUG, logger="poptorch::python")
    optimizer = torch.optim.SGD(params(), lr=0.1)
    watch = AttributeWatch(optimizer)
    optimizer.param_groups[0]["initial_lr"] = 0.1

    watch.check(optimizer, relaxed=True)

    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


def test_a_number_in_place_of_a_method_is_an_unexpected_attribute(caplog):
    optimizer = optim.SGD(params(), lr=0.1)
    watch = AttributeWatch(optimizer)
    optimizer.step = 0

    watch.check(optimizer)

    assert "unexpected optimizer attribute in SGD optimizer: ['step']" in caplog.text


def test_a_learning_rate_scheduler_only_adds_the_initial_rate(caplog):
    optimizer = optim.SGD(params(), lr=0.1)
    watch = AttributeWatch(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)

    watch.check(optimizer)

    assert "['initial_lr']" in caplog.text
    assert len(caplog.records) == 1


def test_loss_scaling_in_a_group_is_ignored_with_a_warning(caplog):
    optimizer = optim.SGD([{"params": params(), "loss_scaling": 4.0}], lr=0.1)

    AttributeWatch(optimizer).check(optimizer)

    assert "loss_scaling of group 0" in caplog.text
    assert "loss_scaling" not in read_attributes(optimizer).groups[0]
    assert read_attributes(optimizer).globals["loss_scaling"].value == 1.0


def test_every_torch_optimizer_is_supported_by_default():
    check_supported(torch.optim.Adagrad(params()), strict=False)
    check_supported(torch.optim.Adam(params(), amsgrad=True), strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_something_else_is_not_an_optimizer(strict):
    with pytest.raises(OptimizerTypeError, match="optimizer=dict"):
        check_supported({"lr": 0.1}, strict=strict)


def test_strict_mode_refuses_rules_without_a_device_version():
    with pytest.raises(AssertionError, match=r"poptorch\.optim\.SGD, torch\.optim\.SGD"):
        check_supported(torch.optim.Adagrad(params()), strict=True)
    with pytest.raises(ValueError, match="amsgrad"):
        check_supported(torch.optim.Adam(params(), amsgrad=True), strict=True)


def test_strict_mode_wants_one_value_of_centered():
    groups = [{"params": params(), "centered": True}, {"params": params()}]

    with pytest.raises(AssertionError, match="centered"):
        check_supported(torch.optim.RMSprop(groups), strict=True)


@pytest.mark.parametrize("cls", [torch.optim.AdamW, optim.AdamW, optim.LAMB, optim.Adam])
def test_strict_mode_takes_library_classes_in_silence(cls, caplog):
    check_supported(cls(params()), strict=True)

    assert not caplog.records


def test_strict_mode_warns_that_a_subclass_is_not_executed(caplog):
    class Mine(torch.optim.SGD):
        pass

    check_supported(Mine(params(), lr=0.1), strict=True)

    assert "Mine" in caplog.text
    assert "not executed" in caplog.text
