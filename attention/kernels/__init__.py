"""The implementations of the families: one file for each implementation, one signature for each family."""
