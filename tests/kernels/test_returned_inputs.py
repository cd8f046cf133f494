"""Inputs that are returned, or become the content of others."""

from __future__ import annotations

import torch
from tests.kernels.programs import Case, check, why_refused


def returned(x, w):
    return x, x @ w, w, x


def only_returned(x):
    return x


def kept(last, x):
    """A buffer that keeps the last batch."""
    old = last.sum()
    last.copy_(x)
    return old, (x * 2).sum()


def kept_and_returned(last, x):
    last.copy_(x)
    return x, x + 1


def exchanged(p, q):
    a, b = p.clone(), q.clone()
    p.copy_(b)
    q.copy_(a)
    return (a + b).sum()


def updated_and_returned(p, g):
    p.sub_(g)
    return p


def test_inputs_are_returned_and_kept():
    x, w = torch.randn(6, 5), torch.randn(5, 3)
    labels = torch.arange(6)
    cases = [
        Case("returned", returned, (x, w)),
        Case("only returned", only_returned, (labels,)),
        Case("turned", lambda x: (x.t(), x[:, 1:], x.sum()), (x,)),
        Case("kept", kept, (torch.randn(6, 5), x)),
        Case("kept, returned", kept_and_returned, (torch.randn(6, 5), x)),
        Case("updated", updated_and_returned, (torch.randn(4, 4), torch.randn(4, 4))),
    ]

    check(cases)


def test_inputs_that_are_exchanged_are_left_to_others():
    case = Case("exchanged", exchanged, (torch.randn(7, 3), torch.randn(7, 3)))

    assert why_refused(case) == "inputs that are exchanged"
