"""Decode CTC outputs with a prefix beam search.

Each beam is a label sequence with two scores, by what the last frame was:

    blank_score   log P(frames so far give the sequence and end in a blank)
    label_score   log P(… and end in its last label)

A repeated label extends the sequence only after a blank. After each frame the best `beam_width`
sequences stay.
"""

from __future__ import annotations

import math

import torch

from pantile.errors import OperandError
from pantile.ops.context import current, strict_mode
from pantile.ops.operands import require_int, require_tensor

Sequence = tuple[int, ...]
Scores = tuple[float, float]

_NEVER = -math.inf


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `top_paths` most likely label sequences of log-probabilities `probs` [T, B, C].

    Returns their log-probabilities [B, K], lengths [B, K] and labels [B, K, T], filled up with
    zeros. A sequence that does not exist has log-probability -inf and length 0. In strict mode the
    results on the CPU are zeros.
    """
    op = "ctc_beam_search_decoder"
    require_tensor(op, "probs", probs)
    require_tensor(op, "lengths", lengths)
    _check_shapes(op, probs, lengths)
    for name, value in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        require_int(op, name, value)
    if not 0 <= blank < probs.shape[2]:
        raise OperandError(
            f"{op}: blank={blank} is not one of the {probs.shape[2]} classes",
            fix=f"pass a class from 0 to {probs.shape[2] - 1}",
        )
    if not 1 <= top_paths <= beam_width:
        raise OperandError(
            f"{op}: top_paths={top_paths} must be between 1 and beam_width={beam_width}",
            fix="pass a larger beam_width or fewer top_paths",
        )
    if current() is None and strict_mode():
        return _zeros(probs, top_paths)
    scores, sizes, labels = torch.ops.pantile.ctc_beam_search(
        probs.detach(), lengths, blank, beam_width, top_paths
    )
    return scores, sizes, labels


@torch.library.custom_op("pantile::ctc_beam_search", mutates_args=())
def _ctc_beam_search(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores, sizes, labels = _zeros(probs, top_paths)
    scores.fill_(_NEVER)
    for item, length in enumerate(lengths.tolist()):
        frames = probs[:length, item].double().tolist()
        best = _search(frames, blank, beam_width)[:top_paths]
        for rank, (sequence, score) in enumerate(best):
            scores[item, rank] = score
            sizes[item, rank] = len(sequence)
            labels[item, rank, : len(sequence)] = torch.tensor(sequence, dtype=labels.dtype)
    return scores, sizes, labels


@_ctc_beam_search.register_fake
def _shapes_only(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _zeros(probs, top_paths)


def _search(frames: list[list[float]], blank: int, width: int) -> list[tuple[Sequence, float]]:
    """Sequences and their log-probabilities, best first."""
    beams: dict[Sequence, Scores] = {(): (0.0, _NEVER)}
    for frame in frames:
        grown: dict[Sequence, Scores] = {}
        for sequence, scores in beams.items():
            _grow(grown, sequence, scores, frame=frame, blank=blank)
        ranked = sorted(grown.items(), key=lambda beam: -_sum(*beam[1]))
        beams = dict(ranked[:width])
    totals = [(sequence, _sum(*scores)) for sequence, scores in beams.items()]
    return sorted(totals, key=lambda beam: -beam[1])


def _grow(
    grown: dict[Sequence, Scores],
    sequence: Sequence,
    scores: Scores,
    *,
    frame: list[float],
    blank: int,
) -> None:
    blank_score, label_score = scores
    total = _sum(blank_score, label_score)
    for label, score in enumerate(frame):
        if label == blank:
            _add(grown, sequence, blank_score=total + score)
        elif sequence and label == sequence[-1]:
            _add(grown, sequence, label_score=label_score + score)
            _add(grown, (*sequence, label), label_score=blank_score + score)
        else:
            _add(grown, (*sequence, label), label_score=total + score)


def _add(
    grown: dict[Sequence, Scores],
    sequence: Sequence,
    *,
    blank_score: float = _NEVER,
    label_score: float = _NEVER,
) -> None:
    if blank_score == label_score == _NEVER:
        return
    known = grown.get(sequence, (_NEVER, _NEVER))
    grown[sequence] = (_sum(known[0], blank_score), _sum(known[1], label_score))


def _sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = (a, b) if a >= b else (b, a)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))


def _zeros(probs: torch.Tensor, paths: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    frames, items, _ = probs.shape
    return (
        probs.new_zeros((items, paths)),
        probs.new_zeros((items, paths), dtype=torch.int32),
        probs.new_zeros((items, paths, frames), dtype=torch.int32),
    )


def _check_shapes(op: str, probs: torch.Tensor, lengths: torch.Tensor) -> None:
    if probs.dim() != 3:
        raise OperandError(
            f"{op}: probs has {probs.dim()} dimensions, it must have rank 3",
            fix="pass log-probabilities of shape [frames, batch, classes]",
        )
    if tuple(lengths.shape) != (probs.shape[1],):
        raise OperandError(
            f"{op}: lengths has shape {list(lengths.shape)}, probs has a batch of {probs.shape[1]}",
            fix=f"pass lengths of shape [{probs.shape[1]}]",
        )
