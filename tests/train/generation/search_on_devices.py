"""Prints, as JSON, whether a search on a mesh of fake devices finds what it finds on one device."""

import json

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.train.generation.test_search import END, KEY, LENGTHS, PAD, SOURCE, START, build
from train.config.schema import MeshConfig
from train.generation.decoding import translate
from train.generation.search import Search
from train.mesh.sharding import make_mesh, parameter_spec


def same(k: int) -> bool:
    """Tells whether K beams on 2 × 2 devices, with parameters split over 2 of them, are those of one device."""
    model, variables = build()
    params, search = variables["params"], Search(k, 1.0, 6)
    source, lengths = np.concatenate([SOURCE, SOURCE[:1]]), np.concatenate([LENGTHS, LENGTHS[:1]])
    alone, _ = translate(model, params, source, lengths, search, KEY, START, END, PAD)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=1))

    def placed(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return jax.device_put(leaf, NamedSharding(mesh, parameter_spec(name, leaf.shape, mesh)))

    with jax.set_mesh(mesh):
        split = jax.tree_util.tree_map_with_path(placed, params)
        batch = jax.device_put((source, lengths), NamedSharding(mesh, P(("data", "fsdp"))))
        together, _ = translate(model, split, *batch, search, KEY, START, END, PAD)
    tokens = np.array_equal(alone.tokens, together.tokens) and np.array_equal(alone.lengths, together.lengths)
    return bool(tokens and np.allclose(alone.scores, together.scores, atol=1e-4))


if __name__ == "__main__":
    print(json.dumps({k: same(k) for k in (1, 3)}))
