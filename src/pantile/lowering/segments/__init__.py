"""Programs of our kernels with single operators left to torch.

    kernels ── cholesky_ex ── kernels ── svd ── kernels

search     which operators have no rule, found by trying
describe   a call of an operator as plain data
worth      when Inductor has better code for the whole program
"""
