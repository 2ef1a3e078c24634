"""Labelled images: where they come from, how they are changed and batched."""
