"""Parts of the Pallas kernels for GPUs."""
