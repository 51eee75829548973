"""The algorithms: a record each (`config.algorithms.Algorithm`), with its formulas beside it."""
