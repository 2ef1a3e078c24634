"""Scores of a query and a key, with one file for each family."""
