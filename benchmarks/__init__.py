"""What `fedrec bench` compares with and the package cannot hold: the naive references of the tests."""
