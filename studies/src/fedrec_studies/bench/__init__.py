"""How fast the methods are and how far they reach: fixed pieces of work, measured, compared, written to pages."""
