"""All methods on the same data under the honest protocol; ranked are those with the same number of trials."""
