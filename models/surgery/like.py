"""Initial values with which an exchanged attention layer computes what the layer before it did, where that is possible.

Zhang's projection W2 ReLU(LN(W1 x + b1)) + b2 (arXiv:2310.11398, section 3.2) can be linear, up to LN's ε, if x comes
from a norm, x = w n + c with normalised n: with W1 = ±diag(1/w) and b1 = ∓c/w its 2D hidden units are ±n, which LN
leaves as they are, and ReLU(n) - ReLU(-n) = n. Without LN it can be linear for every x, with hidden units ±x.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from attention.scores.dot import DotProduct
from attention.scores.luong import Bilinear
from models.layers.projections import MLPS
from models.mechanisms import PROJECTIONS, Mechanism
from models.surgery import exchange
from models.transformer import TransformerConfig

Flat = Mapping[str, jax.Array]
SMALLEST = 1e-4  # a norm's weights below this share of the largest are not divided by


def like(
    config: TransformerConfig, params: dict, original: TransformerConfig, before: dict
) -> tuple[dict, tuple[str, ...]]:
    """Sets exchanged layers as close to those of another model as their form allows, and lists what is set.

    This is exact for MLPs in place of linear projections (if a norm precedes those with a LayerNorm inside), for
    alignments, which start as the identity, for gates before a linear projection, and for bilinear scores.

    Args:
      config: The model's config.
      params: Its parameters, which include the other model's arrays wherever shapes agree.
      original: The other model's config, which differs in its mechanisms alone.
      before: The other model's parameters.
    """
    flat, theirs = (flatten_dict(tree, sep="/") for tree in (params, before))
    ours, were = config.by_path(), original.by_path()
    values: dict[str, jax.Array] = {}
    for path in exchange.exchanged(config, original):
        for piece in PROJECTIONS:
            values |= _projection(config, path, piece, getattr(ours[path], piece), flat, theirs)
        values |= _alignment(path, flat) if were[path].align is None else {}
        values |= {} if were[path].output_gate else _gate(path, flat)
        values |= _bilinear(path, ours[path], were[path], flat)
    placed = {
        path: jax.device_put(value.astype(flat[path].dtype), flat[path].sharding) for path, value in values.items()
    }
    return unflatten_dict(flat | placed, sep="/"), tuple(sorted(values))


def _projection(
    config: TransformerConfig, path: str, piece: str, kind: str, flat: Flat, theirs: Flat
) -> dict[str, jax.Array]:
    """Computes an MLP that equals the other model's linear projection; {} if there is none."""
    kernel = theirs.get(f"{path}/{piece}/kernel")
    if kind not in MLPS or kernel is None:
        return {}
    options, names = MLPS[kind], ("up/kernel", "up/bias", "down/kernel", "down/bias")
    shapes = {name: flat[f"{path}/{piece}/{name}"].shape for name in names}
    bias = theirs.get(f"{path}/{piece}/bias")
    bias = jnp.zeros(kernel.shape[-2:] if piece != "out" else kernel.shape[-1:]) if bias is None else bias
    there, here = (*shapes["up/kernel"][:-1], *bias.shape), (*shapes["up/kernel"][:-1], *shapes["down/bias"])
    if kernel.shape != there or not (there == here or exchange.regroups(f"{path}/{piece}/kernel", there, here)):
        return {}  # the inputs are a latent, or neither number of heads divides the other
    if there != here:
        kernel, bias = (exchange.regrouped(array, here[-2]) for array in (kernel, bias))
    weight = np.asarray(kernel, np.float64).reshape(-1, np.prod(shapes["down/bias"]))
    scale, shift = np.ones(len(weight)), np.zeros(len(weight))
    if options.get("norm", True):
        found = _norm_before(config, path, piece, theirs)
        if found is None:
            return {}
        scale, shift = found
    large = np.abs(scale) > SMALLEST * np.abs(scale).max()
    inverse = np.where(large, 1 / np.where(large, scale, 1.0), 0.0)
    both = np.array([1.0, -1.0]) / (1 if options.get("relu", True) else 2)
    values = {
        "up/kernel": np.concatenate([np.diag(inverse), -np.diag(inverse)], axis=1),
        "up/bias": np.concatenate([-shift * inverse, shift * inverse]),
        "down/kernel": np.concatenate([sign * scale[:, None] * large[:, None] * weight for sign in both]),
        "down/bias": shift @ weight + np.asarray(bias).reshape(-1),
    }
    return {f"{path}/{piece}/{name}": jnp.asarray(values[name].reshape(shapes[name])) for name in names}


def _norm_before(config: TransformerConfig, path: str, piece: str, flat: Flat) -> tuple[np.ndarray, np.ndarray] | None:
    """Finds weight and bias of the norm that precedes a projection; None if no norm does."""
    block, layer = path.rsplit("/", 1)
    stack, number = block.rsplit("_", 1)
    latent = "query_latent" if piece == "query" else "latent"
    if piece == "out" or f"{path}/{latent}/kernel" in flat:
        return None
    if layer == "cross" and piece != "query":
        name = "encoder_norm"
    elif config.norm != "post":
        name = f"{block}/norm_{layer}"
    elif layer == "cross":
        name = f"{block}/norm_attention"
    else:
        before = f"{stack}_{int(number) - 1}"
        last = next((last for last in ("mlp", "cross", "attention") if f"{before}/norm_{last}/scale" in flat), "")
        name = f"{before}/norm_{last}" if int(number) else "norm_embedding"
    if f"{name}/scale" not in flat:
        return None
    scale = np.asarray(flat[f"{name}/scale"], np.float64) + (config.norm_type == "rms_offset")
    return scale, np.asarray(flat.get(f"{name}/bias", np.zeros_like(scale)), np.float64)


def _alignment(path: str, flat: Flat) -> dict[str, jax.Array]:
    """Makes an alignment that changes nothing; {} if the layer has none."""
    kernel, bias = (flat.get(f"{path}/align_{name}") for name in ("kernel", "bias"))
    if kernel is None:
        return {}
    identity = jnp.broadcast_to(jnp.eye(kernel.shape[-1]), kernel.shape)
    return {f"{path}/align_kernel": identity, f"{path}/align_bias": jnp.zeros_like(bias)}


def _gate(path: str, flat: Flat) -> dict[str, jax.Array]:
    """Makes a gate that halves its inputs, and doubles the projection after it; {} if the layer has none."""
    out, gate = f"{path}/out/kernel", f"{path}/output_gate/"
    zeros = {name: jnp.zeros_like(array) for name, array in flat.items() if name.startswith(gate)}
    return zeros | {out: 2 * flat[out]} if zeros and out in flat else {}


def _bilinear(path: str, ours: Mechanism, were: Mechanism, flat: Flat) -> dict[str, jax.Array]:
    """Makes W_a = I · scale for a bilinear score in place of dot products; {} for other scores."""
    plain = type(were.score) is DotProduct and not (were.score.dim or were.score.qk_norm)
    if not (isinstance(ours.score, Bilinear) and plain):
        return {}
    name = f"{path}/score/kernel"
    head = flat[name].shape[-1]
    return {name: jnp.broadcast_to(jnp.eye(head) * (were.score.scale or head**-0.5), flat[name].shape)}
