"""Text: its sources, and the windows and batches made of it."""
