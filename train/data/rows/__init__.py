"""Rows from files, hubs and TensorFlow Datasets, and the splits they come in."""
