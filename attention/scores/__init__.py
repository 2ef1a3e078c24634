"""Scores of a query and a key, one file a family."""
