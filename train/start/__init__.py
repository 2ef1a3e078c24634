"""The start of a run from weights that are there already."""
