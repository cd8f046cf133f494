"""What a static graph cannot hold is an error that names the line and the way out.

Each case is a forward with one offending statement, marked `# here`, and the repaired forward.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.capture.against_eager import infers_like_eager, state_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import poptorch
from pantile.errors import CaptureError, DataDependentError, ForwardError

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]])


class Case(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))

    def fixed(self, x: Tensor) -> Any:
        return self.fc(x)


class Branch(Case):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            return self.fc(x)
        return x

    def fixed(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, self.fc(x), x)


class Item(Case):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * x.max().item()  # here

    def fixed(self, x: Tensor) -> Tensor:
        return self.fc(x) * x.max()


class Integer(Case):
    def forward(self, x: Tensor) -> Tensor:
        n = int(x[0, 0])  # here
        return self.fc(x)[:n]

    def fixed(self, x: Tensor) -> Tensor:
        kept = torch.arange(len(x)).unsqueeze(1) < x[0, 0]
        return torch.where(kept, self.fc(x), 0.0)


class Float(Case):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * float(x.mean())  # here

    def fixed(self, x: Tensor) -> Tensor:
        return self.fc(x) * x.mean()


class ToList(Case):
    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0].tolist()  # here
        return self.fc(x) * max(rows)

    def fixed(self, x: Tensor) -> Tensor:
        return self.fc(x) * x[:, 0].max()


class Numpy(Case):
    def forward(self, x: Tensor) -> Tensor:
        top = x.numpy().max()  # here
        return self.fc(x) * float(top)

    def fixed(self, x: Tensor) -> Tensor:
        return self.fc(x) * x.max()


class While(Case):
    def forward(self, x: Tensor) -> Tensor:
        while x.abs().max() > 1:  # here
            x = x / 2
        return x

    def fixed(self, x: Tensor) -> Tensor:
        (x,) = torch.while_loop(lambda a: a.abs().max() > 1, lambda a: (a / 2,), (x,))
        return x


class Assertion(Case):
    def forward(self, x: Tensor) -> Tensor:
        assert (x < 10).all()  # here
        return self.fc(x)

    def fixed(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        return self.fc(x)


class Range(Case):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.argmax()):  # here
            x = x + 1
        return x

    def fixed(self, x: Tensor) -> Tensor:
        return x + x.argmax()


class Equality(Case):
    def forward(self, x: Tensor) -> Tensor:
        if torch.equal(x, x * 2):  # here
            return x
        return self.fc(x)

    def fixed(self, x: Tensor) -> Tensor:
        return torch.where((x == x * 2).all(), x, self.fc(x))


class Nonzero(Case):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero()  # here

    def fixed(self, x: Tensor) -> Tensor:
        return torch.nonzero_static(x, size=6)


class MaskRead(Case):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0].sum()  # here

    def fixed(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.0).sum()


class Unique(Case):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x)  # here

    def fixed(self, x: Tensor) -> Tensor:
        return x.flatten().sort().values


class MaskedSelect(Case):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_select(x > 0)  # here

    def fixed(self, x: Tensor) -> Tensor:
        return x.flatten().topk(3).values


class RepeatInterleave(Case):
    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(x[:, 0].long(), 0)  # here

    def fixed(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 0)


VALUES = [Branch, Item, Integer, Float, ToList, Numpy, While, Assertion, Range, Equality]
SIZES = [Nonzero, MaskRead, Unique, MaskedSelect, RepeatInterleave]


def place(case: type[Case]) -> str:
    """`file:line` of the statement marked `# here`."""
    lines, first = inspect.getsourcelines(case.forward)
    offset = next(i for i, line in enumerate(lines) if "# here" in line)
    return f"{inspect.getsourcefile(case)}:{first + offset} in forward"


@pytest.mark.parametrize("case", VALUES)
def test_asking_for_a_value_names_the_line_and_the_way_out(case: type[Case]) -> None:
    with pytest.raises(DataDependentError) as caught:
        poptorch.inferenceModel(case())(X)

    assert caught.value.location.startswith(place(case))
    assert place(case) in str(caught.value)
    assert "torch.where" in (caught.value.fix or "")


@pytest.mark.parametrize("case", SIZES)
def test_a_size_that_depends_on_data_names_the_line_and_the_way_out(case: type[Case]) -> None:
    with pytest.raises(DataDependentError) as caught:
        poptorch.inferenceModel(case())(X)

    assert caught.value.location.startswith(place(case))
    assert "fixed size" in (caught.value.fix or "")


def test_a_boolean_mask_read_is_also_torchs_own_error() -> None:
    with pytest.raises(DynamicOutputShapeException):
        poptorch.inferenceModel(MaskRead())(X)


@pytest.mark.parametrize("case", [*VALUES, *SIZES])
def test_the_way_out_works(case: type[Case]) -> None:
    class Fixed(case):  # type: ignore[valid-type,misc]
        def forward(self, x: Tensor) -> Any:
            return self.fixed(x)

    infers_like_eager(Fixed(), (X,), rounds=1)


@pytest.mark.parametrize("case", [Branch, Item])
def test_training_refuses_in_the_same_words(case: type[Case]) -> None:
    with pytest.raises(DataDependentError) as caught:
        poptorch.trainingModel(case())(X)

    assert caught.value.location.startswith(place(case))


def test_printing_a_tensor_in_forward_works(capsys: pytest.CaptureFixture[str]) -> None:
    class Printing(Case):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            print("h is", h)
            print(f"{x} {h.shape}", repr(self.fc.weight))
            return h

    model = Printing()

    result = poptorch.inferenceModel(model)(X)

    assert torch.equal(result, model.fc(X))
    assert "h is" in capsys.readouterr().out


def test_an_error_in_a_called_function_names_its_own_line() -> None:
    def inner(x: Tensor) -> Tensor:
        return x * 2 if x.any() else x

    class Calling(Case):
        def forward(self, x: Tensor) -> Tensor:
            return inner(self.fc(x))

    with pytest.raises(DataDependentError) as caught:
        poptorch.inferenceModel(Calling())(X)

    assert "in inner: return x * 2 if x.any() else x" in caught.value.location


def test_what_forward_raises_keeps_its_class_and_gets_a_place() -> None:
    class Odd(Exception):
        pass

    class Raising(Case):
        def forward(self, x: Tensor) -> Tensor:
            raise {"key": KeyError, "odd": Odd, "value": ValueError}[kind]("no such thing")

    for kind, theirs in (("key", KeyError), ("value", ValueError), ("odd", Odd)):
        with pytest.raises(theirs, match="no such thing") as caught:
            poptorch.inferenceModel(Raising())(X)
        if kind != "odd":
            assert isinstance(caught.value, ForwardError)
            assert "test_refusals.py" in caught.value.location


def test_what_forward_raises_keeps_its_text_in_strict_mode() -> None:
    class Raising(Case):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match=r"^no such thing$") as caught:
        poptorch.inferenceModel(Raising(), poptorch.Options().strict(True))(X)

    assert isinstance(caught.value, ForwardError)
    assert "test_refusals.py" in caught.value.location
    assert str(pickle.loads(pickle.dumps(caught.value))) == "no such thing"


def test_a_batch_norm_that_averages_over_all_batches_is_refused() -> None:
    with pytest.raises(DataDependentError) as caught:
        poptorch.trainingModel(Averaging(momentum=None))(X)

    assert "self.norm(x)" in caught.value.location


class Averaging(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).square().mean()


class Breaking(nn.Module):
    """Changes everything it can reach, then breaks (or does not)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5).eval()
        self.drop.calls = 0
        self.drop.gone = "soon"
        self.tied = self.fc
        self.register_buffer("seen", torch.zeros(()))
        self.note: Any = None
        self.past: list[Tensor] = []
        self.table = torch.ones(3)
        self.broken = True

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        h = self.drop(self.fc(x)) * self.table
        self.note = h
        self.past.append(h)
        self.new = h
        self.drop.calls += 1
        self.drop.train()
        self.drop.added = "text"
        if self.broken:
            del self.drop.gone
        self.seen = self.seen + 1
        if self.broken and h.sum() > 0:
            return h
        return h.square().mean()


def attributes(model: nn.Module) -> dict[str, Any]:
    plain = {k: v for k, v in model.__dict__.items() if k not in ("_parameters", "_buffers")}
    return {**plain, "past": list(plain["past"])}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_a_failed_capture_leaves_the_model_as_it_was(
    wrap: Callable[..., poptorch.PoplarExecutor], strict: bool
) -> None:
    model = Breaking()
    model.fc.register_forward_hook(lambda m, a, out: out * 1)
    executor = wrap(model, poptorch.Options().strict(strict))
    identities = [id(t) for t in (*model.parameters(), *model.buffers())]
    before, state = attributes(model), state_of(model)
    flags, kind = [m.training for m in model.modules()], type(model)

    with pytest.raises(CaptureError):
        executor(X)

    assert [id(t) for t in (*model.parameters(), *model.buffers())] == identities
    assert all(torch.equal(state[name], now) for name, now in state_of(model).items())
    assert attributes(model).keys() == before.keys()
    assert attributes(model)["past"] == []
    assert model.note is None
    assert (model.drop.calls, model.drop.gone) == (0, "soon")
    assert not hasattr(model.drop, "added")
    assert [m.training for m in model.modules()] == flags
    assert type(model) is kind
    assert len(model.fc._forward_hooks) == 1
    assert torch.is_grad_enabled()
    assert not poptorch.isRunningOnIpu()
    assert torch.equal(model.fc(X), model.fc(X))


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_the_next_correct_call_works(wrap: Callable[..., poptorch.PoplarExecutor]) -> None:
    model, twin = Breaking(), Breaking()
    twin.load_state_dict(model.state_dict())
    executor = wrap(model)
    with pytest.raises(CaptureError):
        executor(X)

    executor._model.broken = twin.broken = False

    assert torch.equal(executor(X), twin(X))
    assert torch.equal(model.seen, twin.seen)


def test_another_model_works_after_a_failed_capture() -> None:
    with pytest.raises(CaptureError):
        poptorch.inferenceModel(Branch())(X)

    infers_like_eager(nn.Linear(3, 2), (X,))


def test_errors_survive_the_way_through_another_process() -> None:
    import pickle

    with pytest.raises(DataDependentError) as caught:
        poptorch.inferenceModel(MaskRead())(X)

    again = pickle.loads(pickle.dumps(caught.value))

    assert isinstance(again, DataDependentError)
    assert str(again) == str(caught.value)
