"""`_debugGetPopartIR()`: the step as JSON."""

from __future__ import annotations

import json

import pytest
import torch
from tests.unit.runtime.toy_models import Counter, Pass, Regression, data, options, sgd

import poptorch
from pantile.logging import TRACE


def ops_of(executor):
    whole = json.loads(executor._debugGetPopartIR())
    assert list(whole) == ["maingraph"]
    return whole["maingraph"]


def test_every_op_has_type_name_inputs_outputs_and_attributes():
    model = Regression()
    step = poptorch.trainingModel(model, options(), sgd(model))
    step.compile(*data(4))

    for op in ops_of(step):
        assert op.keys() == {"type", "name", "inputs", "outputs", "attributes"}
        for tensor in op["inputs"] + op["outputs"]:
            assert {"index", "name"} <= tensor.keys()


def test_tensors_lead_from_op_to_op_and_have_shapes():
    infer = poptorch.inferenceModel(Regression(), options())
    infer.compile(torch.ones(4, 3))
    ops = {op["name"]: op for op in ops_of(infer)}

    (out,) = ops["fc/MatMul"]["outputs"]

    assert out == {"index": 0, "name": "fc/MatMul:0", "shape": [4, 2], "type": "FLOAT"}
    assert {t["name"] for t in ops["fc/MatMul"]["inputs"]} >= {"fc.bias", "input"}
    assert set(infer.getTensorNames()) >= {t["name"] for op in ops.values() for t in op["inputs"]}


def test_the_source_of_an_op_is_the_users_line():
    infer = poptorch.inferenceModel(Pass(lambda x: torch.exp(x)), options())
    infer.compile(torch.ones(2))

    (op,) = ops_of(infer)

    assert __file__ in op["attributes"]["source"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), {"SGD0VarUpdate": 2}),
        (lambda p: torch.optim.AdamW(p, lr=0.1), {"AdamUpdater": 2, "AdamVarUpdate": 2}),
        (lambda p: poptorch.optim.AdamW(p, lr=0.1), {"AdamUpdater": 2, "AdamVarUpdate": 2}),
    ],
)
def test_each_parameter_has_its_update(make, expected):
    model = Regression()
    step = poptorch.trainingModel(model, options(), make(model.parameters()))
    step.compile(*data(4))
    types = [op["type"] for op in ops_of(step)]

    assert {kind: types.count(kind) for kind in expected} == expected
    assert ("SGD0VarUpdate" in types) == ("SGD0VarUpdate" in expected)


def test_an_op_that_may_overwrite_its_operand_says_so():
    def forward(x, y):
        with poptorch.NameScope("scope"):
            return x + y

    infer = poptorch.inferenceModel(Pass(forward), options())
    infer.compile(torch.ones(2), torch.ones(2))

    assert '"name":"scope/Add:InPlace"' in infer._debugGetPopartIR()


def test_an_operand_that_is_read_again_or_is_a_weight_is_not_overwritten():
    infer = poptorch.inferenceModel(Pass(lambda x: torch.exp(x) + x), options())
    infer.compile(torch.ones(2))

    assert [op["name"] for op in ops_of(infer)] == ["Exp", "Add:InPlace"]


def test_written_buffers_are_part_of_it():
    infer = poptorch.inferenceModel(Counter(), options())
    infer.compile(torch.ones(1, 3))

    written = [op["outputs"][0]["name"] for op in ops_of(infer) if op["type"] == "CopyVarUpdate"]

    assert written == ["UpdatedVar___seen", "UpdatedVar___total"]


def test_it_needs_a_compiled_model():
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        poptorch.inferenceModel(Regression(), options())._debugGetPopartIR()


def test_the_type_of_partial_sums_is_recorded(caplog):
    caplog.set_level(TRACE, "poptorch::python")
    opts = options()
    opts.Precision.setPartialsType(torch.half)
    poptorch.inferenceModel(Regression(), opts).compile(torch.ones(1, 3))

    assert "poptorch.Options set partialsTypeMatMuls to value half" in caplog.text
    assert "poptorch.Options set convolutionOptions[partialsType] to half" in caplog.text
    assert '"partialsType":"MatMulPartialsType::HALF"' in caplog.text


class _TwoStages(torch.nn.Module):
    """Two products in the first stage, with a checkpoint between them or not."""

    def __init__(self, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.weight = torch.nn.Parameter(torch.rand(3, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("0", ipu_id=0):
            x = self.weight @ x
            if self.checkpoint:
                x = poptorch.recomputationCheckpoint(x)
            x = self.weight @ x
        with poptorch.Block("1", ipu_id=1):
            return torch.nn.functional.l1_loss(x * 2, target)


@pytest.mark.parametrize(("checkpoint", "kept"), [(False, 1), (True, 2)])
def test_a_recomputed_stage_keeps_its_input_and_its_checkpoints(checkpoint, kept):
    chosen = options()
    chosen.Training.gradientAccumulation(3)
    chosen._Popart.set("autoRecomputation", 3)
    model = _TwoStages(checkpoint)
    step = poptorch.trainingModel(model, chosen, sgd(model))
    step.compile(torch.randn(3, 3, 1), torch.randn(3, 3, 1))

    ops = ops_of(step)

    stashed = [op["inputs"][0] for op in ops if op["type"] == "Stash"]
    assert stashed[0]["name"] == "input"
    assert len(stashed) == kept
    assert any("Checkpoint" in op["name"] for op in ops) is checkpoint
