"""Defining mechanisms: by name, as a function of one pair, from a user's file, and what a definition must be."""
