"""One optimizer update as a Program: what is an input, what is a guard, what is refused."""

import operator

import pytest
import torch

from pantile.capture.hyper import UpdateRequest, state_name, structure_of
from pantile.capture.optimizer import capture_update
from pantile.errors import OptimizerError
from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.pipeline import run_passes
from pantile.program.spec import InputKind, TensorSpec

SHAPES = ((3, 4), (5,))


def parameters():
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def request_of(optimizer, **settings):
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): f"p{i}" for i, p in enumerate(owned)}
    gradients = {names[id(p)]: TensorSpec.of(p) for p in owned}
    return UpdateRequest(optimizer, names, gradients, **settings)


def apply(optimizer, gradients, **settings):
    """Capture the update, run it on the real tensors, store the new state; return the program."""
    request = request_of(optimizer, **settings)
    update = capture_update(request)
    owned = {request.names[id(p)]: p for g in optimizer.param_groups for p in g["params"]}
    program = run_passes(update.program)
    state = {
        state_name(key, request.names[id(p)]): value
        for p, entries in optimizer.state.items()
        for key, value in entries.items()
    }
    hypers = {hyper.name: hyper.read(optimizer) for hyper in update.hypers}
    sources = {
        InputKind.PARAMETER: {name: p.detach() for name, p in owned.items()},
        InputKind.GRADIENT: dict(zip(owned, gradients, strict=True)),
        InputKind.OPTIMIZER: state,
        InputKind.HYPER: {"loss_scaling": torch.tensor(8.0), **hypers},
    }
    values = [sources[entry.kind][entry.name] for entry in program.inputs]
    results = ReferenceExecutable(program).run(values)
    for output, result in zip(program.outputs, results, strict=True):
        key, _, name = output.name.partition("/")
        optimizer.state[owned[name]][key] = result.clone()
    return program


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "fused": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"fused": True}),
        ("AdamW", {"foreach": True}),
        ("Adagrad", {"lr_decay": 0.1, "fused": True}),
        ("Adafactor", {}),
        ("RMSprop", {"centered": True, "momentum": 0.5}),
    ],
)
def test_an_update_equals_the_optimizers_own_step(name, settings):
    ours = getattr(torch.optim, name)(parameters(), lr=0.1, **settings)
    theirs = getattr(torch.optim, name)(parameters(), lr=0.1, **settings)

    for _ in range(5):
        gradients = [torch.randn(shape) for shape in SHAPES]
        apply(ours, gradients)
        for p, gradient in zip(theirs.param_groups[0]["params"], gradients, strict=True):
            p.grad = gradient
        theirs.step()

    owned = ours.param_groups[0]["params"], theirs.param_groups[0]["params"]
    for p, wanted in zip(*owned, strict=True):
        assert torch.equal(p, wanted)


def test_gradients_are_divided_and_unscaled_first():
    ours, theirs = (torch.optim.SGD(parameters(), lr=0.5) for _ in range(2))
    gradients = [torch.randn(shape) for shape in SHAPES]

    apply(ours, [g * 8.0 * 3.0 for g in gradients], divisor=3, loss_scaling=True)
    for p, gradient in zip(theirs.param_groups[0]["params"], gradients, strict=True):
        p.grad = gradient
    theirs.step()

    owned = ours.param_groups[0]["params"], theirs.param_groups[0]["params"]
    for p, wanted in zip(*owned, strict=True):
        torch.testing.assert_close(p, wanted, rtol=1e-6, atol=1e-6)


def test_numbers_are_inputs_and_flags_are_not():
    optimizer = torch.optim.Adam(parameters(), lr=0.1, weight_decay=0.25)

    program = capture_update(request_of(optimizer)).program

    hypers = {entry.name for entry in program.inputs_of(InputKind.HYPER)}
    assert hypers == {"lr[0]", "betas.0[0]", "betas.1[0]", "eps[0]", "weight_decay[0]"}


def test_a_branch_on_a_number_leaves_a_guard():
    optimizer = torch.optim.SGD(parameters(), lr=0.1, weight_decay=0.25)

    program = capture_update(request_of(optimizer)).program

    nodes = {node.name: node for node in program.graph.nodes}
    (guard,) = program.guards
    assert guard.taken
    assert nodes[guard.node].target is operator.ne


def test_a_power_leaves_no_guard():
    # 1 - beta2**step under a root: torch's own symbols would ask whether it is negative.
    optimizer = torch.optim.Adam(parameters(), lr=0.1)
    apply(optimizer, [torch.randn(shape) for shape in SHAPES])

    assert not capture_update(request_of(optimizer)).program.guards


def test_capturing_leaves_optimizer_and_parameters_alone():
    optimizer = torch.optim.Adam(parameters(), lr=0.1)
    before = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]

    capture_update(request_of(optimizer))

    assert all(map(torch.equal, optimizer.param_groups[0]["params"], before))
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_structure_ignores_numbers_only():
    optimizer = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    names = request_of(optimizer).names
    before = structure_of(optimizer, names)

    optimizer.param_groups[0].update(lr=0.5, momentum=0.1)
    after_numbers = structure_of(optimizer, names)
    optimizer.param_groups[0]["nesterov"] = True

    assert after_numbers == before
    assert structure_of(optimizer, names) != before


def test_state_that_is_a_python_number_is_refused_with_a_fix():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1

    with pytest.raises(OptimizerError, match=r"count/p0.* is a Python int") as caught:
        capture_update(request_of(Counting(parameters(), lr=0.1)))

    assert "0-d tensor" in str(caught.value)


def test_an_error_of_the_rule_is_also_of_the_rules_class():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("speed") if closure else RuntimeError("no speed")

    with pytest.raises(RuntimeError, match="Broken cannot be recorded: no speed") as caught:
        capture_update(request_of(Broken(parameters(), lr=0.1)))

    assert isinstance(caught.value, OptimizerError)
