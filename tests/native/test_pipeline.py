"""Models in stages on the native engine, where a step is one object."""

from __future__ import annotations

from tests.pipeline.models import Case, same_bits

import poptorch


class NativeCase(Case):
    def options(self, *, annotated: bool, training: bool = True) -> poptorch.Options:
        return super().options(annotated=annotated, training=training).engine("native")


def test_stages_change_no_bit_of_a_native_step():
    case = NativeCase("linear", stages=2, accumulation=3, iterations=2)

    in_stages, plain = (case.train(annotated=annotated) for annotated in (True, False))

    assert same_bits(in_stages, plain)
