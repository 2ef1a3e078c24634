"""Encodings: arrays made of rows once, in files that are mapped into memory: images of one size, and tokens."""
