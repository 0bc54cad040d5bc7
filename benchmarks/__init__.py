"""What needs a device of its own to be measured; everything else is `fedrec bench`."""
