"""Recurrent layers: the operator `rnn` of `paddle.nn.LSTM`, `GRU` and `SimpleRNN`.

    WeightList   w_ih, w_hh of each layer and direction, then b_ih, b_hh in the same order

Gates and formulas are those of torch's functions of these names; only the order of the weights is
another one.
"""

from __future__ import annotations

from typing import Any

import torch

from pantile.errors import OperandError
from pantile.paddle.call import Call, Table, Tensor

_FUNCTIONS: dict[str, Any] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


def _rnn(call: Call) -> None:
    mode = call.text("mode", "LSTM")
    if call.has("SequenceLength"):
        raise OperandError(
            "operator 'rnn' gets sequence_length: sequences of different lengths in a batch",
            fix="pad the sequences, and mask the results behind their ends",
        )
    states, weights = call.tensors("PreState"), call.tensors("WeightList")
    if mode not in _FUNCTIONS or len(states) != (2 if mode == "LSTM" else 1) or len(weights) % 4:
        raise OperandError(
            f"operator 'rnn': mode {mode!r} with {len(states)} states and {len(weights)} weights",
            fix="check how the program was built, or which release of Paddle saved it",
        )
    training = not call.flag("is_test")
    out, *left = _FUNCTIONS[mode](
        call.tensor("Input"),
        states if mode == "LSTM" else states[0],
        _as_torch_has_them(weights),
        True,
        call.integer("num_layers", 1),
        call.number("dropout_prob", 0.0) if training else 0.0,
        training,
        call.flag("is_bidirec"),
        False,
    )
    call.put(out)
    call.put_all(left, "State")


def _as_torch_has_them(weights: list[Tensor]) -> list[Tensor]:
    half = len(weights) // 2
    pairs = zip(
        *(weights[0:half:2], weights[1:half:2], weights[half::2], weights[half + 1 :: 2]),
        strict=True,
    )
    return [tensor for entry in pairs for tensor in entry]


TABLE: Table = {"rnn": _rnn}
