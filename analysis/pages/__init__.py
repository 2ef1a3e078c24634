"""Pages that a browser opens from a file: everything is in them, and nothing is asked of the network."""
