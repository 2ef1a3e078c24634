"""What a run keeps in its work directory, and what a person sees of it."""
