"""Groups of commands: parse, call, print."""
