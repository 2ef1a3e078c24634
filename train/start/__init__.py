"""The start of a run from the weights of a model some of whose layers are exchanged."""
