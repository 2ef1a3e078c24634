"""Models in Flax Linen, which own the parameters and call `attention`."""
