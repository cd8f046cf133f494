"""LSTM layers, step by step; one direction of one layer at a time.

    gates    x w_ih' for all steps at once, then for each step h w_hh' is added
    c        f c + i g                   i, f, o: sigmoid, g: tanh
    h        o tanh(c)

The gates and cells of all steps are kept for the backward, one behind the other.
"""

from __future__ import annotations

from typing import Any

import torch

_LSTM = 2

_MOST_STEPS = 256
"""Every step is written down: longer sequences would take too long to compile."""


def _order(steps: int, reverse: bool) -> list[int]:
    """The steps in the order they are taken."""
    return list(range(steps))[:: -1 if reverse else 1]


def _in_order(pieces: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.cat([pieces[step] for step in range(len(pieces))])


def lstm(
    x: torch.Tensor,
    to_gates: torch.Tensor,
    from_state: torch.Tensor,
    bias: torch.Tensor,
    other_bias: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """All results of `mkldnn_rnn_layer`; the last is what its backward needs."""
    if mode != _LSTM or batch_sizes or len(x) > _MOST_STEPS:
        return NotImplemented
    steps, rows, width = x.shape
    given = torch.mm(x.reshape(steps * rows, width), to_gates.t())
    if has_biases:
        given = given + (bias + other_bias)
    given = given.view(steps, rows, 4 * hidden_size)
    outputs: dict[int, torch.Tensor] = {}
    kept: dict[int, torch.Tensor] = {}
    h, c = hidden, cell
    for step in _order(steps, reverse):
        gates = torch.mm(h, from_state.t()) + given[step]
        i, f, g, o = torch.split(gates, hidden_size, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        outputs[step] = h.unsqueeze(0)
        kept[step] = torch.cat([i, f, g, o, c], 1).unsqueeze(0)
    workspace = _in_order(kept) if train else x.new_empty(0)
    return _in_order(outputs), h.clone(), c.clone(), workspace


def lstm_backward(
    x: torch.Tensor,
    to_gates: torch.Tensor,
    from_state: torch.Tensor,
    bias: torch.Tensor,
    other_bias: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    output: torch.Tensor,
    last_hidden: torch.Tensor,
    last_cell: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_hidden: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Any,
    batch_first: bool,
    workspace: torch.Tensor,
) -> Any:
    """The gradients of x, of the two weights and biases, and of the first state."""
    if mode != _LSTM or batch_sizes or len(x) > _MOST_STEPS:
        return NotImplemented
    steps, rows, width = x.shape
    grad_h, grad_c, order = grad_hidden, grad_cell, _order(steps, reverse)
    parts: dict[int, torch.Tensor] = {}
    for place, step in reversed(list(enumerate(order))):
        if grad_output is not None:
            here = grad_output[step]
            grad_h = here if grad_h is None else grad_h + here
        if grad_h is None:
            grad_h = torch.zeros_like(hidden)
        i, f, g, o, c = torch.split(workspace[step], hidden_size, 1)
        before = workspace[order[place - 1]][:, 4 * hidden_size :] if place else cell
        curved = torch.tanh(c)
        through = grad_h * o * (1 - curved * curved)
        grad_c = through if grad_c is None else grad_c + through
        gates = [
            grad_c * g * i * (1 - i),
            grad_c * before * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_h * curved * o * (1 - o),
        ]
        grad_c = grad_c * f
        joined = torch.cat(gates, 1)
        parts[step] = joined.unsqueeze(0)
        grad_h = torch.mm(joined, from_state)
    assert grad_h is not None and grad_c is not None
    all_gates = _in_order(parts)
    flat = all_gates.reshape(steps * rows, 4 * hidden_size)
    grad_x = torch.mm(flat, to_gates).view(steps, rows, width)
    grad_to_gates = torch.mm(flat.t(), x.reshape(steps * rows, width))
    grad_from_state = _gradient_from_state(all_gates, output, hidden, reverse)
    grad_bias = flat.sum(0)
    return grad_x, grad_to_gates, grad_from_state, grad_bias, grad_bias.clone(), grad_h, grad_c


def _gradient_from_state(
    gates: torch.Tensor, output: torch.Tensor, hidden: torch.Tensor, reverse: bool
) -> torch.Tensor:
    """Of the weight that state goes through: all steps but the first at once."""
    steps = len(gates)
    gradient = torch.mm(gates[-1 if reverse else 0].t(), hidden)
    if steps == 1:
        return gradient
    after, before = (gates[:-1], output[1:]) if reverse else (gates[1:], output[:-1])
    later = after.reshape(-1, gates.shape[-1])
    return torch.mm(later.t(), before.reshape(-1, output.shape[-1])) + gradient
