"""Models in Flax Linen, which own the parameters and call `attention`."""

from attention.errors import moved

moved({"models.mechanisms": "train.mechanisms", "models.table": "train.mechanisms"})
