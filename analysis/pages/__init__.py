"""Self-contained pages that a browser opens from a file, without a network."""
