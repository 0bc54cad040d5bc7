"""Parameters of a method searched on validation items, within a budget."""
