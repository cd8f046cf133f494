"""Rarer operators: parts of values, divisions that round, lookups by several tensors, …"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.kernels.programs import Case, check, why_refused

aten = torch.ops.aten


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def test_padding_and_cutting_are_those_of_torch() -> None:
    check(
        [
            Case("pad", lambda x: F.pad(x * 2, (1, 2, 0, 3), value=0.5), (randn(2, 3, 5),)),
            Case("cut", lambda x: F.pad(x, (-1, 2, 3, -2)), (randn(4, 5, 7),)),
            Case("only cut", lambda x: F.pad(x, (-1, -1)) + 1, (randn(3, 6),)),
            Case("images", lambda x: F.pad(x, (2, 1, 1, 0)).relu(), (randn(2, 3, 4, 5),)),
            Case("numbers", lambda x: F.pad(x, (1, 1), value=3), (torch.arange(7),)),
        ]
    )


def test_slices_that_are_replaced_are_those_of_torch() -> None:
    def scattered(x, y):
        return aten.slice_scatter.default(x, y * 3, 1, 1, 8, 2), x.sum()

    def at_the_end(x, y):
        return aten.slice_scatter.default(x, y, -1, -3, 9223372036854775807) * 2

    check(
        [
            Case("every second", scattered, (randn(3, 9), randn(3, 4))),
            Case("last three", at_the_end, (randn(2, 1, 7), randn(2, 1, 3))),
            Case("all", lambda x, y: aten.slice_scatter.default(x, y, 0), (randn(3), randn(3))),
        ]
    )


def test_views_that_repeat_and_turn_are_those_of_torch() -> None:
    check(
        [
            Case("repeat", lambda x: x.repeat(2, 3, 1) + 1, (randn(3, 4),)),
            Case("repeat a column", lambda x: x.repeat(1, 5) * 2, (randn(7, 1),)),
            Case("flip", lambda x: x.flip(0, 2).exp(), (randn(3, 4, 5),)),
            Case("flip a product", lambda x: (x @ x.t()).flip(1) @ x, (randn(5, 6),)),
            Case("roll", lambda x: x.roll((1, -2), (0, 1)), (randn(4, 9),)),
            Case("as another shape", lambda x: x.as_strided((2, 12), (12, 1)) * 2, (randn(4, 6),)),
        ]
    )


def test_divisions_that_round_are_those_of_torch() -> None:
    special = torch.tensor([0.0, -0.0, 1.5, -7.25, float("inf"), -float("inf"), float("nan"), 1e-3])
    a, b = special.repeat(8), special.repeat_interleave(8)
    down = [torch.div, {"rounding_mode": "floor"}]
    whole = torch.arange(-20, 20)
    check(
        [
            Case("floor", lambda a, b: down[0](a, b, **down[1]), (randn(99) * 9, randn(99))),
            Case("floor of odd numbers", lambda a, b: down[0](a, b, **down[1]), (a, b)),
            Case("trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc"), (a, b)),
            Case("modulo", torch.remainder, (randn(77) * 9, randn(77))),
            Case("modulo of odd numbers", torch.remainder, (a, b)),
            Case(
                "whole", lambda n: (n // 7, n % 7, torch.div(n, 3, rounding_mode="trunc")), (whole,)
            ),
        ]
    )


def test_lookups_by_several_tensors_are_those_of_torch() -> None:
    rows, columns = torch.randint(5, (7,)), torch.randint(-6, 6, (7,))
    grid = torch.randint(5, (3, 1)), torch.randint(6, (4,))
    check(
        [
            Case("pairs", lambda x, i, j: x[i, j] * 2, (randn(5, 6), rows, columns)),
            Case("pairs of rows", lambda x, i, j: x[i, j], (randn(5, 6, 3), rows, columns)),
            Case("a grid", lambda x, i, j: x[i, j], (randn(5, 6, 2), *grid)),
            Case("behind", lambda x, i, j: x[:, i, j], (randn(2, 5, 6), rows, columns)),
            Case("apart", lambda x, i, j: x[i, :, j], (randn(5, 3, 6), rows, columns)),
            Case("a product", lambda x, i, j: (x @ x)[i, j], (randn(6, 6), rows, columns)),
        ]
    )


def test_truth_and_products_of_many_are_those_of_torch() -> None:
    x = randn(3, 21, 5)
    truth = torch.rand(4, 70) > 0.9
    check(
        [
            Case("any", lambda x: ((x > 2).any(), (x > 1).any(1), (x > 2).any((0, 2))), (x,)),
            Case("all", lambda x: ((x > -9).all(), (x > -1).all(-1, keepdim=True)), (x,)),
            Case("any of bool", lambda x: (x.any(1), x.all(0), ~x.any(0, True)), (truth,)),
            Case("product", lambda x: (x.prod(1), x[0, 0].prod() * 2), (x,)),
            Case(
                "largest whole", lambda n: (n.amax(0), n.amin((0, 1))), (torch.randint(99, (5, 9)),)
            ),
        ]
    )


def test_rare_functions_are_those_of_torch() -> None:
    x = torch.rand(40) * 2 - 1
    names = ("acos", "asin", "atan", "cosh", "sinh", "tan")
    cases = [Case(name, getattr(torch, name), (x,)) for name in names]
    check(
        [*cases, Case("atan2", torch.atan2, (x, x.flip(0))), Case("var", lambda x: x.var(), (x,))]
    )


def test_larger_images_and_their_gradients_are_those_of_torch() -> None:
    def bilinear(old: tuple[int, int], new: list[int], corners: bool) -> Case:
        def function(x, dy):
            size = [2, 3, *old]
            return (
                aten.upsample_bilinear2d.default(x, new, corners, None, None),
                aten.upsample_bilinear2d_backward.default(dy, new, size, corners, None, None),
            )

        return Case(f"{old} to {new}", function, (randn(2, 3, *old), randn(2, 3, *new)))

    def nearest(old: tuple[int, int], new: list[int]) -> Case:
        def function(x, dy):
            size = [2, 3, *old]
            return (
                aten.upsample_nearest2d.default(x, new, None, None),
                aten.upsample_nearest2d_backward.default(dy, new, size, None, None),
            )

        return Case(f"nearest {old} to {new}", function, (randn(2, 3, *old), randn(2, 3, *new)))

    check(
        [
            bilinear((4, 5), [8, 10], False),
            bilinear((4, 5), [7, 11], True),
            bilinear((6, 7), [3, 2], False),
            bilinear((1, 1), [5, 1], True),
            nearest((4, 5), [8, 15]),
            nearest((4, 5), [7, 3]),
        ]
    )


def test_values_at_computed_places_are_those_of_torch() -> None:
    rows, columns = torch.randint(5, (7,)), torch.randint(-6, 6, (7,))
    apart = torch.randperm(6)[:4]
    put = aten.index_put.default
    along = torch.randint(4, (3, 6))

    def masked(x, i, m, v):
        return aten._unsafe_masked_index_put_accumulate.default(x, m, [i], v)

    def masked_lookup(x, i, m):
        return aten._unsafe_masked_index.default(x, m, [None, i], 7.0)

    x, vector = randn(5, 6), randn(7)
    wild = torch.tensor([2, 99, -50, 0])
    inside = torch.tensor([True, False, False, True])
    check(
        [
            Case("pairs", lambda x, i, j, v: put(x, [i, j], v, True), (x, rows, columns, vector)),
            Case("rows", lambda x, i, v: put(x, [i], v * 2, True) * 3, (x, rows, randn(7, 6))),
            Case("columns", lambda x, i, v: put(x, [None, i], v), (x, apart, randn(5, 4))),
            Case(
                "between",
                lambda x, i, j, v: put(x, [i, None, j], v, True),
                (randn(5, 3, 6), rows, columns, randn(7, 3)),
            ),
            Case(
                "a grid",
                lambda x, i, j, v: put(x, [None, i, j], v, True),
                (randn(2, 5, 6), torch.randint(5, (4, 1)), torch.randint(6, (3,)), randn(2, 4, 3)),
            ),
            Case("one number", lambda x, i, v: put(x, [i], v, True), (x, rows, randn(1))),
            Case("a mask", lambda x, v: put(x, [x > 0], v), (x, torch.tensor(2.0))),
            Case(
                "added along", lambda x, i, v: x.scatter_add(0, i, v), (randn(4, 6), along, x[:3])
            ),
            Case("along", lambda x, i, v: x.scatter(0, i, v), (randn(6, 4), apart[:, None], x[:4])),
            Case("masked", masked, (randn(5), wild, inside, randn(4))),
            Case("masked lookup", masked_lookup, (x, wild, inside)),
            Case("counted", lambda n, i: n.scatter_add(0, i, i), (torch.arange(6), rows)),
        ]
    )


def test_running_sums_and_places_of_maxima_are_those_of_torch() -> None:
    x, special = randn(3, 21, 5), torch.tensor([1.0, 3.0, float("nan"), 3.0, float("nan")])
    whole = torch.randint(5, (4, 7))
    check(
        [
            Case("sums", lambda x: (x.cumsum(1) * 2, x.cumsum(-1), x[0, 0].cumsum(0)), (x,)),
            Case("products", lambda x: x.cumprod(0), (x,)),
            Case("of whole numbers", lambda n: (n.cumsum(0), (n > 2).cumsum(1)), (whole,)),
            Case("backwards", lambda x: x.flip(1).cumsum(1).flip(1), (x,)),
            Case("argmax", lambda x: (x.argmax(1), x.argmin(-1, keepdim=True), x.argmax()), (x,)),
            Case("argmax of NaN", lambda x: (x.argmax(), x.argmin(0)), (special,)),
            Case("of equal ones", lambda n: (n.argmax(0), n.argmin(1), n.argmax()), (whole,)),
            Case("max", lambda x: (*x.max(1), *x.min(0, keepdim=True), x.max(), x.min()), (x,)),
            Case("of one element", lambda x: (x.argmax(0), x.cumsum(0)), (randn(1),)),
        ]
    )


def test_products_times_a_number_are_those_of_torch() -> None:
    nan = torch.full((5, 7), float("nan"))
    a, b, c = randn(5, 6), randn(6, 7), randn(5, 7)
    batch = randn(3, 5, 7), randn(3, 5, 6), randn(3, 6, 7)
    check(
        [
            Case("alpha", lambda c, a, b: torch.addmm(c, a, b, alpha=0.5), (c, a, b)),
            Case("beta", lambda c, a, b: torch.addmm(c, a, b, beta=3, alpha=2), (randn(7), a, b)),
            Case("no addend", lambda c, a, b: torch.addmm(c, a, b, beta=0), (nan, a, b)),
            Case("batch", lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.1), batch),
        ]
    )


def test_bags_of_rows_are_those_of_torch() -> None:
    def bags(mode: int) -> Case:
        def function(table, indices, offsets, dy):
            y, *rest = aten._embedding_bag.default(table, indices, offsets, False, mode)
            gradient = aten._embedding_bag_backward.default(
                dy, indices, offsets, *rest, len(table), False, mode, False, None
            )
            return y, gradient

        given = torch.randint(9, (11,)), torch.tensor([0, 3, 3, 4])
        return Case(f"bags {mode}", function, (randn(9, 5), *given, randn(4, 5)))

    check([bags(0), bags(1)])


def test_a_lookup_waits_for_the_whole_value_it_looks_into() -> None:
    def into_a_product(a, b, i):
        y = a @ b
        return y + y[i], y.cumsum(0)

    def into_each(a, i):
        y = a * 2 + torch.tanh(a)
        return y.exp() + y.gather(1, i), y

    turned, places = torch.tensor([3, 2, 1, 0]), torch.randint(6, (4, 6))
    check(
        [
            Case("product", into_a_product, (randn(4, 6), randn(6, 5), turned)),
            Case("each", into_each, (randn(4, 6), places)),
        ]
    )


def test_short_rows_are_sorted_as_torch_sorts_them() -> None:
    odd = torch.tensor([1.0, float("nan"), -2.0, float("inf"), 1.0, float("nan"), -float("inf")])
    whole = torch.randint(4, (3, 9))

    def stable(n):
        return (*n.sort(stable=True, dim=1), *n.sort(stable=True, dim=0, descending=True))

    check(
        [
            Case("sort", lambda x: (*x.sort(1), *x.sort(0, descending=True)), (randn(5, 21),)),
            Case("odd numbers", lambda x: x.sort(stable=True, dim=0), (odd,)),
            Case("equal ones stay in order", stable, (whole,)),
            Case("largest", lambda x: (*x.topk(3), *x.topk(2, 0, largest=False)), (randn(5, 8),)),
        ]
    )


def test_reshapes_that_cut_through_rows_are_those_of_torch() -> None:
    def shifted(x):
        """The rows of relative positions, moved against each other."""
        rows, columns = x.shape[-2:]
        y = F.pad(x * 2, (1, 0)).reshape(*x.shape[:-2], columns + 1, rows)
        return y[..., 1:, :].reshape(x.shape).exp()

    check(
        [
            Case("shift", shifted, (randn(2, 4, 7),)),
            Case("each", lambda x: (x + 1).reshape(7, 4).t() * 2, (randn(4, 7),)),
            Case("product", lambda x, y: (x @ y).reshape(6, 5) @ x.t(), (randn(5, 5), randn(5, 6))),
            Case("sum", lambda x: x.exp().view(9, 4).sum(0), (randn(6, 6),)),
        ]
    )


def test_single_numbers_go_where_matrices_do() -> None:
    a, b, x = torch.tensor(2.0), torch.tensor(3.0), torch.randn(4, 4)
    single, place = torch.randn(()), torch.tensor(0)

    def chosen(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where(a + 1 > b, x, 0)  # no triangle

    check(
        [Case("a choice", chosen, (a, b, x)), Case("a window", lambda x: x.unfold(0, 1, 1), (a,))]
    )
    scattered = Case("", lambda x, i, y: x.scatter_add(0, i, y), (single, place, a))
    assert why_refused(scattered) == "a scatter into a single number"
