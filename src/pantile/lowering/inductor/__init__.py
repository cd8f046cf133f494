"""Program → one shared object, through Inductor's code generator and the C++ compiler.

prepare    numbers become tensors, randomness becomes counters, constants become inputs
generate   Inductor writes C++ kernels and a host program
kernels    what is thrown in a parallel loop is caught there
host       the host program on our own header: fixed buffers, nothing allocated after the first run
build      the C++ compiler
load       the object in memory, ready to run
"""
