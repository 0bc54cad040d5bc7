"""Methods between real machines: nodes with their own data around a server, joined by Flower."""
