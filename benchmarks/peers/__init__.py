"""The models of the comparisons in other libraries."""
