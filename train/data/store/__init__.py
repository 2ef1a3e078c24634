"""The store: tokenised text on disk, which is mapped into memory, and learned vocabularies."""
