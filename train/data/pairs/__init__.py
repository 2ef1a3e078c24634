"""Parallel text: where it comes from, and the batches made of it."""
