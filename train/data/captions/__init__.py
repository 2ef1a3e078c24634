"""Images with captions: their sources and their batches."""
