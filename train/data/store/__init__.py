"""Tokenised text on disk: made once, mapped into memory, and the vocabularies it is made with."""
