"""The coding suite and its problems."""
