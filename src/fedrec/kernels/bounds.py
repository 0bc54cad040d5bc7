"""Bounds that compiled and batched code of the same loss share."""

LEAST_SLOPE = 1e-12  # of the divisor p (1 - p) in the gradient of a saturated loss
LEAST_LOG = -100.0
TILE = 64  # rows and columns of a tile of similarities: it and the rows that it compares fit the nearest cache
