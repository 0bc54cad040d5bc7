"""HTML pages: of runs, of a dataset; a template each."""
