"""Our own code generator: a program becomes C++ made for its shapes.

    index        what a view does to an index: sums of loop variables
    simplify     one operator, one result; what is several operators in one, taken apart
    plan         which values get memory, which kernel computes what
    trace        the value of a node at an index, as C++ statements
    rules/       how a kernel of each family is written: matrix products, convolutions, sums, …
    memory       one arena for all buffers
    source       the C++ files
    templates/   what the generated code stands on: vectors, tiles, mathematics, threads

What no rule takes is `Refused`: such a program is left to Inductor.
"""
