"""Stages and blocks reach every node, whatever is done to the model and to the program."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import options, sgd
from torch import nn

import poptorch
from pantile.lowering.prepare import prepare
from pantile.passes.accumulate_gradients import accumulate_gradients
from pantile.program.program import tag_of
from pantile.program.text import constants_of, equal, parse_program, print_program
from poptorch import BeginBlock, Block, BlockFunction


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Net(nn.Module):
    """Four kinds of annotations, a tied weight, a checkpoint, and a loss without a block."""

    def __init__(self) -> None:
        super().__init__()
        self.one = BeginBlock(nn.Linear(3, 3), "begin", ipu_id=0)
        self.two, self.three, self.four = (nn.Linear(3, 3) for _ in range(3))
        self.four.weight = self.two.weight

    @BlockFunction("function", ipu_id=2)
    def third(self, x):
        return F.dropout(torch.tanh(self.three(x)), 0.5)

    def forward(self, x, target):
        x = torch.relu(self.one(x))
        with Block("scope", ipu_id=1):
            x = poptorch.recomputationCheckpoint(self.two(x))
        x = self.third(x)
        Block.start("start here", ipu_id=3)
        return F.mse_loss(self.four(x), target)


def program_of(model: nn.Module):
    executor = poptorch.trainingModel(model, options(accumulation=2), sgd(model))
    executor.compile(torch.ones(2, 3), torch.ones(2, 3))
    program = executor._executable.program
    executor.destroy()
    return program


def placed(program) -> list[tuple[str, str, int, str]]:
    tags = [(str(n.target), tag_of(n)) for n in program.graph.nodes if n.op == "call_function"]
    return [(op, tag.phase, tag.stage, tag.block) for op, tag in tags]


BLOCKS = {0: "begin", 1: "scope", 2: "function", 3: "start here"}


def test_forward_and_backward_nodes_carry_their_stage_and_block():
    found = placed(program_of(Net()))

    products = [(p, s, b) for op, p, s, b in found if "addmm" in op]
    assert products == [("forward", stage, BLOCKS[stage]) for stage in range(4)]
    back = [(s, b) for op, p, s, b in found if p == "backward" and "mm" in op]
    assert [s for s, _ in back] == [3, 3, 2, 2, 1, 1, 0]
    assert all(BLOCKS[s] == b for s, b in back)
    # The two gradients of the tied weight are added where the second of them is computed.
    assert [s for op, p, s, _ in found if p == "backward" and "add.Tensor" in op] == [1]
    # The seed of the gradients belongs to the loss.
    assert [s for op, _, s, _ in found if "ones_like" in op] == [3]


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved],
    ids=["copy", "deepcopy", "pickle", "save"],
)
def test_annotations_survive_copies_and_files(duplicate):
    model = Net()
    twin = duplicate(model)

    assert type(twin) is Net
    assert list(twin.state_dict()) == list(model.state_dict())
    assert placed(program_of(twin)) == placed(program_of(model))


def test_tags_survive_printing_and_parsing():
    program = program_of(Net())

    parsed = parse_program(print_program(program), constants_of(program))

    assert equal(parsed, program)
    assert placed(parsed) == placed(program)
    kept = [tag_of(n) for n in parsed.graph.nodes if tag_of(n).checkpoint]
    assert [(tag.stage, tag.block) for tag in kept] == [(1, "scope")]


def test_tags_survive_the_passes_of_the_native_engine():
    program = program_of(Net())

    prepared = prepare(accumulate_gradients(program, None, running=False)).program

    def stages(given, phase: str) -> list[int]:
        return [s for op, p, s, _ in placed(given) if p == phase and "mm" in op]

    for phase in ("forward", "backward"):
        assert stages(prepared, phase) == stages(program, phase)
    # Also what a pass wrote: the draw of a mask is many nodes now, all of stage 2.
    written = {n.name for n in prepared.graph.nodes} - {n.name for n in program.graph.nodes}
    shifts = [n for n in prepared.graph.nodes if n.name in written and "bitwise" in str(n.target)]
    assert shifts
    assert {tag_of(node).stage for node in shifts} == {2}
