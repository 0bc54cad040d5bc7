"""Bounds that compiled and batched code of the same loss share."""

# Both are those of torch.nn.BCELoss, which the released programs train with: the least divisor p (1 - p) in its
# gradient, and the least logarithm in its loss.
LEAST_SLOPE = 1e-12
LEAST_LOG = -100.0
# Rows and columns of a tile of similarities: the tile (16 KiB in single precision) and the rows that it compares fit
# the nearest cache.
TILE = 64
