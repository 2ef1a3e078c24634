"""What the bench does on a GPU or a TPU, measured by one program: `python -m benchmarks.device`."""
