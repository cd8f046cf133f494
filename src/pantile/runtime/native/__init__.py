"""The device loop in C++: a call of an executor runs without Python in between.

plan.py          what a loop runs: programs, their inputs, the schedule, threads
loop.py          the loop as the executor sees it
loop_library.py  compiles loop.cpp once and loads it
structures.py    the plan as C++ sees it
loop.cpp         the loop; with plan.h, workers.h (threads) and sums.h (sums over replicas)
"""
