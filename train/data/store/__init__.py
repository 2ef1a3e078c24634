"""The store: tokenised text on disk, which is mapped into memory, in splits, with the tokenisers learned from it."""
