"""Labelled images: their sources, transforms and batches."""
