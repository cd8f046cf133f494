"""What is made of constant inputs alone is computed once for many runs."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tests.kernels.programs import Case, check_close, graph_of, taken
from tests.kernels.test_random_programs import N, step
from torch.nn import functional

from pantile.lowering.kernels.build import build
from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.source import sources
from pantile.lowering.load import NativeProgram, NativeRun

Tensors = Sequence[torch.Tensor]


class Kept:
    """A checked program whose inputs are its constants, but for the first one."""

    def __init__(self, function: Callable[..., Any], inputs: Tensors) -> None:
        graph = graph_of(lambda *given: [function(*given)], inputs)
        self.writer = written(graph, range(1, len(inputs)))
        program = NativeProgram(build(sources(self.writer, 2), checked=True), [])
        self._native = NativeRun(program, 1)
        self._library = library = program.library
        for name in ("setups", "kernels_run", "setup_kernels", "kernels"):
            getattr(library, f"pantile_{name}").restype = ctypes.c_long

    def _number(self, name: str) -> int:
        context = ctypes.c_void_p(self._native._context)
        found: int = getattr(self._library, f"pantile_{name}")(context)
        return found

    @property
    def setups(self) -> int:
        return self._number("setups")

    @property
    def setup_kernels(self) -> int:
        found: int = self._library.pantile_setup_kernels()
        return found

    def run(self, inputs: Tensors, *, again: bool, threads: int = 1) -> torch.Tensor:
        """A run in which all kernels ran that should have."""
        ran, setups, before = self._number("kernels_run"), self.setups, torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            (result,) = (self._native.run_again if again else self._native.run)(inputs)
        finally:
            torch.set_num_threads(before)
        skipped = 0 if self.setups > setups else self.setup_kernels
        assert self._number("kernels_run") - ran == self._library.pantile_kernels() - skipped
        return result.clone()


def near(ours: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(ours, wanted, rtol=2e-4, atol=2e-4 * float(wanted.abs().max()))


def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    images = functional.conv2d(x, w, b, padding=1)
    return functional.linear(images.relu().flatten(1), v)


def layer_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (8, 32, 4, 4), (48, 32, 3, 3), (48,), (70, 48 * 16)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_are_packed_once_and_again_when_the_caller_does_not_vouch(threads: int) -> None:
    inputs = layer_inputs()
    program = Kept(layers, inputs)

    for number, again in enumerate([True, True, True, False, True]):
        inputs[0] = torch.randn_like(inputs[0])
        near(program.run(inputs, again=again, threads=threads), layers(*inputs))
        assert program.setups == (1 if number < 3 else 2)
    assert program.setup_kernels >= 2


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a factor": lambda x: x.mul_(1.5),
    "another sign": torch.Tensor.neg_,
    "a tenth of the numbers": lambda x: x.view(-1)[::10].add_(1),
    "another order": lambda x: x.copy_(x.flip(0)),
    "zeros": torch.Tensor.zero_,
    "last bits": lambda x: x.mul_(1 + 2.0**-20),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_the_caller_has_not_seen_is_found_by_a_sample(change: str) -> None:
    inputs = layer_inputs()
    program = Kept(layers, inputs)
    program.run(inputs, again=False)

    for number, weight in enumerate(inputs[1:2] + inputs[3:]):
        CHANGES[change](weight)
        near(program.run(inputs, again=True), layers(*inputs))
        assert program.setups == 2 + number


def test_one_number_of_a_small_constant_is_found() -> None:
    inputs = layer_inputs()
    inputs[1] = torch.randn(5, 32, 3, 3)[:, :7].clone()
    inputs[:] = [torch.randn(8, 7, 4, 4), inputs[1], torch.randn(5), torch.randn(10, 80)]
    program = Kept(layers, inputs)
    program.run(inputs, again=False)

    for number, place in enumerate([0, 17, 5 * 7 * 9 - 1]):
        inputs[1].view(-1)[place] += 1
        near(program.run(inputs, again=True), layers(*inputs))
        assert program.setups == 2 + number


def test_constants_in_other_memory_are_packed_again() -> None:
    inputs = layer_inputs()
    program = Kept(layers, inputs)
    program.run(inputs, again=False)
    moved = [inputs[0], *(x.clone() for x in inputs[1:])]

    near(program.run(moved, again=True), layers(*inputs))
    assert program.setups == 2


ROWS = (4, 7, 16, 33, 130)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m", ROWS)
def test_products_with_a_constant_factor(m: int, dtype: torch.dtype) -> None:
    torch.manual_seed(m)
    shapes = (m, 600), (600, 37), (100, 600), (600, 300)
    inputs = [(torch.randn(shape) / 5).to(dtype) for shape in shapes]

    def products(x: Any, a: Any, b: Any, c: Any) -> Any:
        return torch.cat([x @ a, functional.linear(x, b), (x @ c).relu()], 1)

    program = Kept(products, inputs)
    wanted = products(*(x.float() for x in inputs))
    error = 2e-4 if dtype is torch.float32 else 2e-2
    for again in (False, True, True):
        ours = program.run(inputs, again=again).float()
        assert (ours - wanted).abs().max() <= error * wanted.abs().max()
    assert program.setups == 1


def test_a_constant_factor_on_the_left_is_packed_too() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(64, 40), torch.randn(48, 64)]
    program = Kept(lambda x, w: (w @ x).relu(), inputs)

    for again in (False, True):
        near(program.run(inputs, again=again), (inputs[1] @ inputs[0]).relu())


def test_one_weight_of_many_products_is_packed_once() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(16, 64), torch.randn(64, 64) / 8]

    def steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = functional.linear(x, w).tanh()
        return x

    program = Kept(steps, inputs)

    near(program.run(inputs, again=False), steps(*inputs))
    near(program.run(inputs, again=True), steps(*inputs))
    assert program.setup_kernels == 1


def test_what_later_kernels_write_to_is_not_kept() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(5, 8), torch.tensor([0, 2, 2, 1, 3]), torch.randn(4, 8)]

    def sums(x: torch.Tensor, places: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return (start * 2).index_add(0, places, x) + 1

    program = Kept(sums, inputs)

    for again in (False, True, True):
        near(program.run(inputs, again=again), sums(*inputs))


def test_a_constant_mask_and_a_concatenation_with_constants() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(6, 6), torch.randn(6, 3), torch.randn(9, 9)]

    def masked(x: torch.Tensor, piece: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(6, 6).tril() == 0
        joined = torch.cat([x.masked_fill(mask, 0.5), piece.exp()], 1)
        return joined @ (w * 2).t()

    program = Kept(masked, inputs)

    for again in (False, True, True):
        inputs[0].add_(1)
        near(program.run(inputs, again=again), masked(*inputs))


def test_a_program_without_constants_has_no_setup() -> None:
    inputs = layer_inputs()[:1]
    program = Kept(lambda x: (x @ x.transpose(2, 3)).exp(), inputs)

    assert program.setup_kernels == 0
    near(program.run(inputs, again=True), (inputs[0] @ inputs[0].transpose(2, 3)).exp())


def test_the_factors_of_a_batch_norm_are_computed_once_and_the_rest_follows_the_images() -> None:
    torch.manual_seed(0)
    shapes = (2, 8, 6, 6), (16, 8, 3, 3), (16,), (16,), (16,)
    inputs = [torch.rand(shape) for shape in shapes]

    def normed(x: Any, w: Any, mean: Any, variance: Any, weight: Any) -> Any:
        images = functional.conv2d(x, w)
        return functional.batch_norm(images, mean, variance, weight).relu()

    program = Kept(normed, inputs)

    near(program.run(inputs, again=False), normed(*inputs))
    near(program.run(inputs, again=True), normed(*inputs))
    assert program.setup_kernels == 2  # a packed weight, and the factors
    (images,) = (f for f in program.writer.functions if f.note.startswith("images"))
    assert "op_sqrt" not in images.text and "op_relu" in images.text


def test_what_is_added_to_a_dear_constant_is_no_part_of_the_setup() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(9, 7), torch.randn(9, 7), torch.randn(7)]

    def sums(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x + w.exp().tanh()) * v.exp().tanh() + (w.sin() + x).exp()

    program = Kept(sums, inputs)

    for again in (False, True, True):
        inputs[0].add_(0.25)
        near(program.run(inputs, again=again), sums(*inputs))
    assert program.setups == 1


def steps_of(seed: int, *inputs: torch.Tensor) -> torch.Tensor:
    """Random operators on values that are constant, or not, or made of both."""
    rng, values = random.Random(seed), list(inputs)
    for _ in range(12):
        values.append(step(rng, values))
    return torch.cat([x.reshape(-1) * 1.5 for x in values[len(inputs) :]])


@pytest.mark.parametrize("batch", range(4))
def test_random_programs_of_which_parts_are_constant(batch: int) -> None:
    torch.manual_seed(batch)
    inputs = [torch.randn(N, N) for _ in range(3 + batch % 2)]

    cases = [
        Case(str(seed), partial(steps_of, seed), tuple(inputs))
        for seed in range(batch * 6, batch * 6 + 6)
    ]
    functions = [case.function for case in taken(cases)]

    def programs(*given: torch.Tensor) -> torch.Tensor:
        return torch.cat([function(*given) for function in functions])

    program = Kept(programs, inputs)

    for again in (False, True, True):
        inputs[0].copy_(torch.randn(N, N))
        ours, own = program.run(inputs, again=again), programs(*inputs)
        best = programs(*(x.double() for x in inputs))
        check_close(ours, own, best, f"batch {batch}", 20)
    assert program.setups == 1 and program.setup_kernels > 5
