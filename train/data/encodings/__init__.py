"""Arrays made from rows once, in memory-mapped files: images of one size, and tokens."""
