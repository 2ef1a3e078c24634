"""The pairwise family's kernels on TPUs: how a strip is scored, a tile of pairs, and both passes over tiles."""
