"""Watch runs, studies and federations of a folder in a browser; nothing here writes or trains."""
