"""The papers' tables, run again: each table is a list of runs and what the paper prints beside them."""
