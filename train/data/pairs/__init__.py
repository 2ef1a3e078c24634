"""Parallel text: its sources and its batches."""
