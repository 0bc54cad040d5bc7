SMALL = "synthetic@users=60+items=100+interactions=1200+seed=1"
"""About 45 users after the filter, each with room for twenty candidates."""
