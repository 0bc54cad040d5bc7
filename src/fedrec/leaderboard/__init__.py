"""All methods on the same data under the honest protocol, each with the same number of trials."""
