"""Programs cut into the pieces of their stages."""

from __future__ import annotations

import pytest
import torch

from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.split_stages import split_stages
from pantile.program.text import parse_program, print_program
from pantile.program.verify import verify
from pantile.schedule import Kind

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD

TWO_STAGES = """
program gradients
  param   %w  "w"  float32[3]
  buffer  %n  "n"  float32[3]
  arg     %x  "x"  float32[3]
  %a = aten.mul.Tensor(%x, %w)         -> float32[3]  # forward stage=0 block=first
  %m = aten.add.Tensor(%n, %a)         -> float32[3]  # forward stage=0 block=first
  %b = aten.sin.default(%a)            -> float32[3]  # forward stage=0 block=first
  %c = aten.exp.default(%b)            -> float32[3]  # forward stage=1 block=second
  %d = aten.mul.Tensor(%c, %b)         -> float32[3]  # backward stage=1 block=second
  %e = aten.cos.default(%a)            -> float32[3]  # backward stage=0 block=first
  %f = aten.mul.Tensor(%d, %e)         -> float32[3]  # backward stage=0 block=first
  %g = aten.mul.Tensor(%f, %x)         -> float32[3]  # backward stage=1
  write   %n <- %m  as %copy_
  return  %c  "out"  user      float32[3]
  return  %g  "w"    gradient  float32[3]
"""


def names(piece) -> list[str]:
    return [node.name for node in piece.program.graph.nodes if node.op == "call_function"]


def run_pieces(split, values):
    """The outputs of the program, piece by piece, with nothing but edges between them."""
    edges, outputs = {}, {}
    for piece in split.pieces.values():
        given = [values[i] for i in piece.state] + [edges[name] for name in piece.edges]
        results = ReferenceExecutable(piece.program).run(given)
        outputs.update(zip(piece.returns, results, strict=False))
        edges.update(zip(piece.sends, results[len(piece.returns) :], strict=True))
    return [outputs[i] for i in range(len(outputs))]


def test_a_node_runs_in_the_piece_of_its_stage_but_not_before_what_it_reads():
    split = split_stages(parse_program(TWO_STAGES), 2, training=True)

    assert {key: names(piece) for key, piece in split.pieces.items()} == {
        (F, 0): ["a", "m", "b", "copy_"],
        (F, 1): ["c"],
        (B, 1): ["d"],
        (B, 0): ["e", "f", "g"],  # g is tagged with stage 1, and reads f of stage 0
    }
    assert split.pieces[B, 0].edges == ("a", "d")
    assert split.readers["b"] == {(F, 1), (B, 1)}
    assert split.ordered == ""
    assert split.after(1) == (0,)


def test_a_recomputed_stage_keeps_what_enters_it_and_computes_the_rest_again():
    split = split_stages(parse_program(TWO_STAGES), 2, training=True, recomputed={0})

    assert names(split.pieces[R, 0]) == ["a"]
    assert "a" not in split.pieces[F, 0].sends
    assert split.pieces[B, 0].edges == ("a__again", "d")


@pytest.mark.parametrize("recomputed", [(), (0,), (0, 1)])
def test_the_pieces_compute_what_the_program_computes(recomputed):
    program = parse_program(TWO_STAGES)
    values = [torch.randn(3) for _ in range(3)]
    copies = [value.clone() for value in values]

    split = split_stages(program, 2, training=True, recomputed=recomputed)

    expected = ReferenceExecutable(program).run(copies)
    assert all(map(torch.equal, run_pieces(split, values), expected))
    assert torch.equal(values[1], copies[1])


def test_a_checkpoint_is_kept():
    text = TWO_STAGES.replace("block=first", "block=first checkpoint=1", 1)

    split = split_stages(parse_program(text), 2, training=True, recomputed={0})

    assert (R, 0) not in split.pieces
    assert split.pieces[B, 0].edges == ("a", "d")


def test_random_draws_and_what_reads_written_state_are_not_computed_again():
    text = TWO_STAGES.replace("aten.cos.default(%a)", "aten.add.Tensor(%m, %r)").replace(
        "  %b =", "  %r = aten.bernoulli.p(%x, 0.5) -> float32[3]  # forward stage=0\n  %b ="
    )

    split = split_stages(parse_program(text), 2, training=True, recomputed={0})

    assert (R, 0) not in split.pieces
    assert set(split.pieces[B, 0].edges) == {"m", "r", "d"}


def test_state_that_two_stages_use_keeps_micro_batches_from_overlapping():
    text = TWO_STAGES.replace("aten.exp.default(%b)", "aten.add.Tensor(%b, %n)")

    split = split_stages(parse_program(text), 2, training=True)

    assert "'n' is read by the forward of stage 0" in split.ordered
    # It is written when its last reader is done.
    assert names(split.pieces[F, 1]) == ["c", "copy_"]


def test_without_training_everything_is_forward():
    split = split_stages(parse_program(TWO_STAGES), 2, training=False)

    assert set(split.pieces) == {(F, 0), (F, 1)}
    assert names(split.pieces[F, 1]) == ["c", "d", "f", "g"]


def test_pieces_are_programs_that_print_and_parse():
    for piece in split_stages(parse_program(TWO_STAGES), 2, training=True).pieces.values():
        text = print_program(piece.program)

        verify(piece.program)
        assert print_program(parse_program(text)) == text
