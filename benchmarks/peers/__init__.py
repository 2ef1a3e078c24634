"""The opponents in comparisons: models and mechanisms in other libraries."""
