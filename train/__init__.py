"""Training: the programs, the loop, and in a room each: configs, data, tasks, runs, devices, decoding and grids."""

from attention.errors import moved

moved({"train.scores": "train.score"})
