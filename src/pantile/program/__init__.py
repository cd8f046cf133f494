"""The static graph: Program, its inputs and outputs, its text form, its verifier."""
