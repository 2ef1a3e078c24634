"""Compiling for described chips: causal attention with its gradients, and any function of arrays."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

import attention
from attention import Mask, mesh


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Sets environment variables, and at the end what they were before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


@contextlib.contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """Removes at the end all that is in a folder, so that nobody reads what another one dumped."""
    try:
        yield
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def gradients(spec: str, implementation: str) -> Callable:
    """Makes the gradient of a mechanism's summed output by parameters, queries, keys and values."""

    def loss(params, query, key, value):
        out = attention.attend(spec, params, query, key, value, mask=Mask(causal=True), implementation=implementation)
        return out.astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2, 3))


def shapes(spec: str, tokens: int, heads: int, width: int, batch: int = 1) -> tuple[Any, ...]:
    """Lists the shapes of a mechanism's parameters, and of queries, keys and values."""
    params = jax.eval_shape(lambda: attention.init(spec, jax.random.key(0), heads, width))
    x = (batch, tokens, heads, width)
    return {name: param.shape for name, param in params.items()}, x, x, x


def compiled(function: Callable, shapes: Any, dtype: str, device: Any) -> jax.stages.Compiled:
    """Compiles a function for a device.

    Args:
      shapes: The shapes of its arguments.
    """
    with mesh.compiled_for(device):
        return jax.jit(function).lower(*arrays(shapes, dtype, device)).compile()


def arrays(shapes: Any, dtype: str, device: Any) -> Any:
    """Describes arrays on a device from a tree of their shapes."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device)),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple) and all(isinstance(size, int) for size in x),
    )
