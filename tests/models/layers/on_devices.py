"""Run in a process with several fake devices: how far every mechanism on a mesh is from one device, as JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attention import Mask
from attention.recurrences.linear import Recurrence
from tests.models.test_layers_contract import ON_DEVICES, implementations, layer, mechanism, params_of, tokens
from train.mesh.sharding import AXES, parameter_spec


def gradients(module, params, x):
    """Output and gradients of causal self-attention in training."""

    def scalar(params, x):
        rngs = {"dropout": jax.random.key(3)}
        out = module.apply({"params": params}, x, mask=Mask(causal=True), train=True, rngs=rngs)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1), has_aux=True))(params, x)


def worst_error(spec, mesh):
    """Largest difference of any number between the mesh and one device, relative to the largest of its array."""
    dropout = 0.0 if isinstance(mechanism(spec).score, Recurrence) else 0.2  # which has no weights to drop
    module = layer(spec, implementations(spec)[-1], dropout=dropout)
    params, x = params_of(module), tokens(batch=8)
    alone = gradients(module, params, x)

    def placed(path, leaf):
        name = "attention/" + jax.tree_util.keystr(path, simple=True, separator="/")
        return jax.device_put(leaf, NamedSharding(mesh, parameter_spec(name, leaf.shape, mesh)))

    with jax.set_mesh(mesh):
        split = jax.tree_util.tree_map_with_path(placed, params)
        together = gradients(module, split, jax.device_put(x, NamedSharding(mesh, P(("data", "fsdp")))))

    def error(a, b):
        return float(jnp.abs(a - jax.device_get(b)).max() / jnp.maximum(1.0, jnp.abs(a).max()))

    return float(np.max(jax.tree.leaves(jax.tree.map(error, alone, together))))  # Python's max passes over NaN


if __name__ == "__main__":
    mesh = jax.make_mesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
    print(json.dumps({spec: worst_error(spec, mesh) for spec in ON_DEVICES}))
