"""Variants of methods that only a reproduction needs: steps of released programs, switches of ablations."""
