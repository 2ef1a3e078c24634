"""Measurements of the bench on a GPU or a TPU, by one program: `python -m benchmarks.device`."""
