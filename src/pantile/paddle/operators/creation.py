"""Constants, random numbers, casts, look-ups."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pantile.errors import OperandError
from pantile.paddle.call import Call, Table, Tensor, one_tensor, with_attributes


def _shape(call: Call) -> list[int]:
    return call.known_integers(("ShapeTensor", "ShapeTensorList", "Shape"), "shape")


def _number_for(dtype: torch.dtype, number: float) -> float | int | bool:
    if dtype is torch.bool:
        return bool(number)
    return number if dtype.is_floating_point or dtype.is_complex else int(number)


def _fill_constant(call: Call) -> None:
    dtype, shape = call.dtype("dtype", torch.float32), _shape(call)
    given = call.optional("ValueTensor")
    if given is not None:
        call.put(given.reshape(()).to(dtype).expand(shape).clone())
        return
    written = call.text("str_value", "")
    number = float(written) if written else call.number("value", 0.0)
    call.put(torch.full(shape, _number_for(dtype, number), dtype=dtype))


def _fill_like_batch(call: Call) -> None:
    shape, dtype = call.integers("shape"), call.dtype("dtype", torch.float32)
    rows = call.tensor("Input").shape[call.integer("input_dim_idx", 0)]
    shape[call.integer("output_dim_idx", 0)] = rows
    written = call.text("str_value", "")
    number = float(written) if written else call.number("value", 0.0)
    call.put(torch.full(shape, _number_for(dtype, number), dtype=dtype))


def _fill_any_like(call: Call, x: Tensor) -> Tensor:
    dtype = call.dtype("dtype", x.dtype)
    return torch.full_like(x, _number_for(dtype, call.number("value", 0.0)), dtype=dtype)


_VALUE_ATTRIBUTES = (
    "values",
    "bool_values",
    "fp32_values",
    "fp64_values",
    "int32_values",
    "int64_values",
    "int8_values",
    "uint8_values",
    "fp16_values",
)


def _assign_value(call: Call) -> None:
    attributes = call.operator.attributes
    values = next((list(attributes[n]) for n in _VALUE_ATTRIBUTES if attributes.get(n)), [])
    dtype = call.dtype("dtype", torch.float32)
    numbers = [_number_for(dtype, value) for value in values]
    call.put(torch.tensor(numbers, dtype=dtype).reshape(call.integers("shape")))


def _gaussian_random(call: Call) -> None:
    dtype = call.dtype("dtype", torch.float32)
    draw = torch.randn(_shape(call), dtype=dtype)
    call.put(draw * call.number("std", 1.0) + call.number("mean", 0.0))


def _uniform_random(call: Call) -> None:
    low, high = call.number("min", -1.0), call.number("max", 1.0)
    draw = torch.rand(_shape(call), dtype=call.dtype("dtype", torch.float32))
    call.put(draw * (high - low) + low)


def _range(call: Call) -> None:
    start, end, step = (call.tensor(slot) for slot in ("Start", "End", "Step"))
    bounds = [tensor.reshape(()).item() for tensor in (start, end, step)]
    call.put(torch.arange(*bounds, dtype=call.dtype("dtype", start.dtype)))


def _cast(call: Call, x: Tensor) -> Tensor:
    return x.to(call.dtype("out_dtype"))


def _assign(x: Tensor) -> Tensor:
    return x.clone()


def _increment(call: Call, x: Tensor) -> Tensor:
    return x + _number_for(x.dtype, call.number("step", 1.0))


def _lookup(call: Call) -> None:
    """Rows of a table; the padding row gives zeros and gets no gradient."""
    table, ids = call.tensor("W"), call.tensor("Ids")
    if call.type == "lookup_table":
        ids = ids.reshape(ids.shape[:-1])
    rows, padding = F.embedding(ids, table), call.integer("padding_idx", -1)
    if padding >= 0:
        rows = rows * (ids != padding).unsqueeze(-1).to(rows.dtype)
    call.put(rows)


def _one_hot(call: Call) -> None:
    x, given = call.tensor(), call.optional("depth_tensor")
    depth = call.integer("depth") if given is None else int(given)
    if call.type == "one_hot":
        x = x.reshape(x.shape[:-1])
    classes = torch.arange(depth, dtype=x.dtype)
    call.put((x.unsqueeze(-1) == classes).to(call.dtype("dtype", torch.float32)))


def _gather(call: Call) -> None:
    x, index, given = call.tensor(), call.tensor("Index"), call.optional("Axis")
    axis = call.integer("axis", 0) if given is None else int(given)
    rows = torch.index_select(x, axis, index.reshape(-1))
    call.put(rows.squeeze(axis) if index.dim() == 0 else rows)


def _gather_nd(call: Call) -> None:
    x, index = call.tensor(), call.tensor("Index")
    call.put(x[tuple(index.unbind(-1))])


def _index_select(call: Call) -> None:
    index = call.tensor("Index").reshape(-1)
    call.put(torch.index_select(call.tensor(), call.integer("dim", 0), index))


def _where(call: Call) -> None:
    call.put(torch.where(call.tensor("Condition"), call.tensor("X"), call.tensor("Y")))


def _select_input(call: Call) -> None:
    """What one of several branches computed; all of them were."""
    choices, mask = call.tensors(), call.tensor("Mask").reshape(())
    if len({choice.shape for choice in choices}) > 1:
        raise OperandError(
            f"branches give results of the shapes {[list(c.shape) for c in choices]}",
            fix="let all branches give the same shape",
        )
    chosen = choices[0]
    for place, choice in enumerate(choices[1:], 1):
        chosen = torch.where(mask == place, choice, chosen)
    call.put(chosen)


def _triangle(call: Call, x: Tensor) -> Tensor:
    keep = torch.tril if call.flag("lower", True) else torch.triu
    return keep(x, call.integer("diagonal", 0))


TABLE: Table = {
    "assign": one_tensor(_assign),
    "assign_value": _assign_value,
    "cast": with_attributes(_cast),
    "fill_any_like": with_attributes(_fill_any_like),
    "fill_constant": _fill_constant,
    "fill_constant_batch_size_like": _fill_like_batch,
    "fill_zeros_like": one_tensor(torch.zeros_like),
    "gather": _gather,
    "gather_nd": _gather_nd,
    "gaussian_random": _gaussian_random,
    "increment": with_attributes(_increment),
    "index_select": _index_select,
    "lookup_table": _lookup,
    "lookup_table_v2": _lookup,
    "one_hot": _one_hot,
    "one_hot_v2": _one_hot,
    "range": _range,
    "tril_triu": with_attributes(_triangle),
    "uniform_random": _uniform_random,
    "select_input": _select_input,
    "where": _where,
}
