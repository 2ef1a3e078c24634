"""Kernels for TPUs: those of the pairwise family (a strip, a tile, both passes), and JAX's splash attention."""
