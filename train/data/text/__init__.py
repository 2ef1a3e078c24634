"""Text: where it comes from, and the windows and batches made of it."""
