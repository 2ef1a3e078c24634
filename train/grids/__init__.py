"""The grid of a sweep: its runs, how they are matched, and who trains them."""
