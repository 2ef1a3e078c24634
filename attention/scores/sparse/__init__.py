"""Attention in which each query chooses what it attends to, by what it finds there."""
