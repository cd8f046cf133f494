"""Several signatures at once by default; one, with PopTorch's messages, when pinned."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import (
    Pass,
    Regression,
    data,
    eager_step,
    options,
    same_state,
    sgd,
    strict,
    twin,
)
from torch import nn

import poptorch


def test_the_last_partial_batch_trains_as_in_eager_mode():
    model = Regression()
    eager = twin(model)
    step, optimizer = poptorch.trainingModel(model, options(), sgd(model)), sgd(eager)

    for rows in (4, 4, 3, 4, 3):
        batch = data(rows)
        _, loss = step(*batch)
        assert torch.equal(loss, eager_step(eager, optimizer, [batch])[1])

    assert same_state(model, eager)


def test_shapes_dtypes_python_values_and_none_each_have_their_program():
    class Many(nn.Module):
        def forward(self, x, power=1, bias=None):
            out = x**power
            return out if bias is None else out + bias

    model = poptorch.inferenceModel(Many(), options())
    eager = Many()

    calls = [
        (torch.arange(3.0),),
        (torch.arange(4.0),),
        (torch.arange(3),),
        (torch.arange(3.0), 2),
        (torch.arange(3.0), 1, torch.ones(3)),
        (torch.arange(3.0), 2, torch.ones(())),
        (torch.arange(3.0, dtype=torch.float64),),
    ]
    for call in [*calls, *calls]:
        out, expected = model(*call), eager(*call)
        assert torch.equal(out, expected)
        assert out.dtype is expected.dtype


def test_one_and_true_and_one_point_zero_are_different_values():
    model = poptorch.inferenceModel(Pass(lambda x, v: x + (10 if v is True else v)), options())
    x = torch.zeros(2, dtype=torch.int64)

    assert model(x, 1).tolist() == [1, 1]
    assert model(x, True).tolist() == [10, 10]
    assert model(x, 1.0).dtype is torch.float32


def test_forward_runs_once_for_each_signature():
    runs = []
    model = poptorch.inferenceModel(Pass(lambda x: runs.append(x.shape) or x), options())

    for rows in (2, 2, 3, 2, 3):
        model(torch.ones(rows))

    assert runs == [(2,), (3,)]


def test_the_order_of_dict_keys_does_not_matter():
    runs = []

    def forward(d):
        runs.append(1)
        return d["a"] - d["b"]

    for opts in (options(), strict()):
        runs.clear()
        model = poptorch.inferenceModel(Pass(forward), opts)
        a, b = torch.ones(2), torch.full((2,), 3.0)

        assert torch.equal(model({"a": a, "b": b}), a - b)
        assert torch.equal(model({"b": b, "a": a}), a - b)
        assert len(runs) == 1


def test_train_and_eval_on_the_executor_switch_between_two_programs():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    eager = twin(model)
    executor = poptorch.inferenceModel(model, options())
    x = torch.randn(4, 3)

    for mode in (True, False, True, False):
        assert executor.train(mode) is executor
        eager.train(mode)
        assert torch.equal(executor(x), eager(x))

    assert same_state(model, eager)


def test_the_mode_at_the_first_call_holds_when_the_host_model_changes_its_own():
    model = nn.Sequential(nn.Dropout(0.5))
    executor = poptorch.inferenceModel(model, options())
    x = torch.ones(1000)

    assert (executor(x) == 0).any()
    model.eval()
    assert (executor(x) == 0).any()
    assert (executor(torch.ones(999)) == 0).any()


def test_strict_mode_forwards_train_and_eval_to_the_host_model_only():
    model = nn.Sequential(nn.Dropout(0.5))
    executor = poptorch.inferenceModel(model, strict())
    x = torch.ones(1000)
    executor(x)

    executor.eval()

    assert not model.training
    assert (executor(x) == 0).any()


PINNED = [strict, lambda: options(pinSignature=True)]


@pytest.mark.parametrize("opts", PINNED)
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"x": torch.ones(1)},
            {"x": torch.ones(2)},
            "Shape mismatch for x: expected torch.Size([1]) but got torch.Size([2])",
        ),
        (
            {"x": torch.ones(1)},
            {"x": torch.ones(1, dtype=torch.int64)},
            "Data type mismatch for x: expected torch.float32 but got torch.int64",
        ),
        (
            {"x": torch.ones(1), "z": torch.ones(1)},
            {"x": torch.ones(1)},
            "Type mismatch for z: expected <class 'torch.Tensor'> but got <class 'NoneType'>",
        ),
        (
            {"x": torch.ones(1), "z": 5},
            {"x": torch.ones(1), "z": 3},
            "Value mismatch for z: expected 5 but got 3",
        ),
        (
            {"x": torch.ones(1), "z": [1, 2]},
            {"x": torch.ones(1), "z": [1, 3]},
            "Value mismatch for z: expected [1, 2] but got [1, 3]",
        ),
        (
            {"x": torch.ones(1), "z": (torch.ones(1), torch.ones(1))},
            {"x": torch.ones(1), "z": (torch.ones(1),)},
            "Length mismatch for z: expected 2 elements but got 1",
        ),
        (
            {"x": torch.ones(1), "z": {"a": torch.ones(1), "b": torch.ones(1)}},
            {"x": torch.ones(1), "z": {"a": torch.ones(1), "c": torch.ones(1)}},
            "Keys mismatch for z: Unexpected arguments: c. Missing arguments: b",
        ),
        (
            {"x": torch.ones(1), "z": {"a": torch.ones(1)}},
            {"x": torch.ones(1), "z": {"a": torch.ones(2)}},
            "Shape mismatch for z[a]: expected torch.Size([1]) but got torch.Size([2])",
        ),
    ],
)
def test_a_pinned_model_says_what_differs(opts, first, second, message):
    class Two(nn.Module):
        def forward(self, x, z=None):
            return x * 2

    model = poptorch.inferenceModel(Two(), opts())
    model(**first)

    with pytest.raises(poptorch.Error) as error:
        model(**second)

    assert message in str(error.value)
    assert str(error.value).rstrip().endswith("and the model is compiled again")
    assert "destroy()" in str(error.value)
    model.destroy()
    assert torch.equal(model(**second), second["x"] * 2)


@pytest.mark.parametrize("opts", PINNED)
def test_a_pinned_model_counts_positional_arguments_and_names_keywords(opts):
    class Variadic(nn.Module):
        def forward(self, *args, **kwargs):
            return sum(args) + sum(kwargs.values())

    model = poptorch.inferenceModel(Variadic(), opts())
    x = torch.ones(1)
    model(x, x, a=x)

    with pytest.raises(poptorch.Error, match="Number of positional arguments mismatch") as error:
        model(x, a=x)
    assert "expected 2 arguments but got 1" in str(error.value)
    with pytest.raises(poptorch.Error, match=r"Keys mismatch for kwargs: Unexpected arguments: b"):
        model(x, x, a=x, b=x)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for \*args\[1\]"):
        model(x, torch.ones(2), a=x)


@pytest.mark.parametrize("opts", PINNED)
def test_compiling_a_pinned_model_again_is_ignored_with_a_warning(opts, caplog):
    model = poptorch.inferenceModel(Regression(), opts())
    model.compile(torch.ones(1, 3))

    model.compile(torch.ones(2, 3))

    assert "already compiled" in caplog.text
    assert model(torch.ones(1, 3)).shape == (1, 2)


def test_an_autocast_scope_round_the_call_has_its_own_program():
    model = Regression()
    eager = twin(model)
    step, optimizer = poptorch.trainingModel(model, options(), sgd(model)), sgd(eager)
    x, target = data(4)

    for enabled in (False, True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out, loss = step(x, target)
            expected = eager(x, target)
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert out.dtype is (torch.bfloat16 if enabled else torch.float32)
        assert torch.equal(loss, expected[1])

    assert same_state(model, eager)


def test_many_programs_for_changing_numbers_are_warned_about(caplog):
    model = poptorch.inferenceModel(Pass(lambda x, scale: x * scale), options())

    for number in range(17):
        model(torch.ones(1), float(number))

    assert caplog.text.count("programs were compiled for different arguments") == 1


def test_the_tensors_of_the_first_call_are_not_kept():
    import gc
    import weakref

    model = poptorch.inferenceModel(Regression(), options())
    x = torch.ones(4, 3)
    gone = weakref.ref(x)
    model(x)

    del x
    gc.collect()

    assert gone() is None
