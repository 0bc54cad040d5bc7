"""The commands of this package, found by the entry points in the group `fedrec.commands`."""
