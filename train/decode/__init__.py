"""What trained models write, and how it is shown."""
