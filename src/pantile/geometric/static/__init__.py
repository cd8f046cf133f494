"""Functions and layers of PyG whose results have the same shape for every graph.

missing     edges that are not there: index -1, taken by nobody
neighbors   knn, radius and the like: as many results as there could be
loops       self-loops, removed without removing
layers      forwards that select rows by value
swaps       puts all of these in place while a model is captured
"""
