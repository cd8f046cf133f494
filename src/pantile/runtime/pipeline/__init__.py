"""Pipelines on the reference engine: the pieces of a program, run as a schedule says.

plan.py      which pieces, which schedule, and whether micro-batches may overlap here
draws.py     random numbers as the unsplit program would draw them
edges.py     the values between pieces, held until their last reader is done
crew.py      the actions of a schedule on threads
batch.py     the micro-batches of a step: what goes in, and what comes out
costs.py     what each stage costs, estimated
report.py    all this as text and JSON
"""
