"""The files that a run keeps in its work directory, and what it shows on the screen."""
