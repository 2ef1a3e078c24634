"""What trained models write: search, sampling, alignments and scores of texts."""
