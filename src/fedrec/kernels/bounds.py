"""Bounds that compiled and batched code of the same loss share."""

LEAST_SLOPE = 1e-12  # of the divisor p (1 - p) in the gradient of a saturated loss
LEAST_LOG = -100.0
