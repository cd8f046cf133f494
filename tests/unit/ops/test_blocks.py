"""Blocks: what the recorder hears, and that modules stay what they are."""

import copy
import io

import pytest
import torch
from torch import nn

from pantile.errors import Error
from pantile.ops import module_text
from pantile.ops.blocks import BeginBlock, Block, BlockFunction, LegacyBeginBlockFn, removeBlocks


def through_torch_save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def events(device, function):
    """What a capture of `function` hears."""
    notebook = device.Notebook()
    with device.recording(notebook):
        function()
    return notebook.events


def test_a_block_scope_begins_and_ends(device):
    def forward():
        with Block("a", ipu_id=1):
            pass

    assert events(device, forward) == [("begin", "a", 1), "end"]


def test_a_started_block_has_no_end(device):
    assert events(device, lambda: Block.start("a", 2)) == [("begin", "a", 2)]


def test_blocks_without_an_id_are_numbered_anew_in_each_capture(device):
    def forward():
        Block.start()
        Block.start(ipu_id=3)

    expected = [("begin", "0", None), ("begin", "1", 3)]
    assert events(device, forward) == expected
    assert events(device, forward) == expected


def test_use_auto_id_restarts_the_numbers(device):
    def forward():
        Block.start()
        Block.useAutoId()
        Block.start()

    assert events(device, forward) == [("begin", "0", None), ("begin", "0", None)]


def test_begin_block_annotates_the_module_itself(device):
    layer = nn.Linear(2, 2)
    names, keys = dict(layer.named_parameters()).keys(), layer.state_dict().keys()

    annotated = BeginBlock(layer, user_id="a", ipu_id=1)

    assert annotated is layer
    assert type(annotated) is nn.Linear
    assert dict(layer.named_parameters()).keys() == names
    assert layer.state_dict().keys() == keys
    assert events(device, lambda: layer(torch.ones(2))) == [("begin", "a", 1)]


def test_annotations_do_nothing_on_the_cpu():
    layer = nn.Linear(2, 2)
    x = torch.ones(2)
    expected = layer(x)

    with Block("b"):
        actual = BeginBlock(layer, "a")(x)

    assert torch.equal(actual, expected)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, through_torch_save])
def test_a_copy_of_an_annotated_module_is_annotated(device, duplicate):
    model = nn.Sequential(BeginBlock(nn.Linear(2, 2), "a"), BeginBlock(nn.ReLU(), "b", 1))

    copied = duplicate(model)

    expected = [("begin", "a", None), ("begin", "b", 1)]
    assert events(device, lambda: copied(torch.ones(2))) == expected


def test_remove_blocks_takes_back_all_of_them_and_no_other_hook(device):
    model = nn.Sequential(BeginBlock(nn.Linear(2, 2), "a"), nn.Sequential(BeginBlock(nn.ReLU())))
    calls = []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))

    removeBlocks(model)

    assert events(device, lambda: model(torch.ones(2))) == []
    assert calls == [1]


def test_a_module_cannot_be_in_two_blocks_until_the_first_is_removed():
    layer = BeginBlock(nn.Linear(2, 2), "a")

    with pytest.raises(Error, match="already been assigned to a block") as caught:
        BeginBlock(layer, "b")

    assert "removeBlocks" in caught.value.fix
    removeBlocks(layer)
    BeginBlock(layer, "b")


def test_a_function_is_wrapped_in_a_module(device):
    double = BeginBlock(layer_to_call=lambda x: 2 * x, user_id="a", ipu_id=1)

    assert isinstance(double, LegacyBeginBlockFn)
    assert (double._user_id, double._ipu_id) == ("a", 1)
    assert double(4) == 8
    assert events(device, lambda: double(4)) == [("begin", "a", 1)]


def test_what_cannot_be_called_cannot_be_a_block():
    with pytest.raises(Error, match="layer_to_call=int"):
        BeginBlock(3)


@pytest.mark.parametrize(
    "make", [lambda i: Block("a", i), lambda i: BeginBlock(nn.ReLU(), "a", i), BlockFunction]
)
@pytest.mark.parametrize("ipu_id", [-1, "1", 0.5])
def test_an_ipu_number_is_a_natural_number(make, ipu_id):
    if make is BlockFunction:
        make = lambda i: BlockFunction("a", i)  # noqa: E731

    with pytest.raises(Error, match="ipu_id="):
        make(ipu_id)


def test_a_block_function_is_inside_a_block(device):
    @BlockFunction("a", ipu_id=0)
    def double(x):
        """Doc."""
        return 2 * x

    assert double(3) == 6
    assert double.__doc__ == "Doc."
    assert events(device, lambda: double(3)) == [("begin", "a", 0), "end"]


def test_module_repr_shows_blocks():
    model = nn.Sequential(BeginBlock(nn.Linear(2, 3), "a", 1), nn.ReLU())

    text = module_text.module_repr(model)

    expected = repr(model).replace("Linear", "BeginBlock(user_id=a, ipu_id=1) Linear")
    assert text == expected


def test_module_repr_of_nested_modules_is_laid_out_as_torch_does():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.BatchNorm1d(2))

    assert module_text.module_repr(model) == repr(model)


def test_print_prints_the_module(capsys):
    module_text.print(BeginBlock(nn.ReLU(), "a"))

    assert capsys.readouterr().out == "BeginBlock(user_id=a, ipu_id=None) ReLU()\n"
