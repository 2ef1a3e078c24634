"""Layers of the gated delta rule and of Mamba-2's state space against transformers': whole, and with a cache."""

import jax.numpy as jnp
import numpy as np
import pytest

from models.layers.multi_head import MultiHeadAttention
from tests.parity.close import WHY, assert_layer, drawn, torch, transformers

qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason=WHY)
mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason=WHY)

BATCH, LENGTH, HEADS, HEAD, MODEL = 2, 11, 3, 8, 5
TAPS = ("taps", "taps_bias")


def compare(family, theirs, spec, params, width):
    """Our layer against theirs."""
    x = np.random.default_rng(1).normal(size=(BATCH, LENGTH, width)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(x)).numpy()
    layer = MultiHeadAttention(spec, HEADS, bias=False, head=HEAD)
    assert_layer(layer, {"params": params}, x, expected, family, rtol=0, what="layer")


def heads_of(kernel, heads=HEADS):
    """`(D, N·H)` as `(D, N, H)`."""
    return kernel.reshape(kernel.shape[0], heads, -1)


def taps(w, heads):
    """The convolutions of theirs `(channels, 1, taps)` as ours, for parts with these heads in their order."""
    ends = np.cumsum([number * HEAD for number in heads])[:-1]
    bias = w.get("conv1d.bias", jnp.zeros(sum(heads) * HEAD))
    sides = zip(jnp.split(w["conv1d.weight"], ends), jnp.split(bias, ends), heads, strict=True)
    return [(x.reshape(number, HEAD, -1).transpose(2, 0, 1), b.reshape(number, HEAD)) for x, b, number in sides]


def named(parts, arrays):
    return {
        f"{part}_{name}": x
        for part, pair in zip(parts, arrays, strict=True)
        for name, x in zip(TAPS, pair, strict=True)
    }


@pytest.mark.parametrize("groups", [1, HEADS])
def test_a_layer_of_qwen3_next_is_a_row(groups):
    sizes = {"linear_num_key_heads": groups, "linear_num_value_heads": HEADS, "hidden_size": MODEL}
    sizes |= {"linear_key_head_dim": HEAD, "linear_value_head_dim": HEAD, "num_hidden_layers": 1}
    config = transformers.Qwen3NextConfig(**sizes, layer_types=["linear_attention"])
    layer, w = drawn(qwen.Qwen3NextGatedDeltaNet(config, 0), 0.5)
    wide = HEAD * HEADS // groups
    ends = [HEAD, 2 * HEAD, 2 * HEAD + wide]
    query, key, value, gate = jnp.split(w["in_proj_qkvz.weight"].T.reshape(MODEL, groups, -1), ends, -1)
    strength, forget = jnp.split(w["in_proj_ba.weight"].T.reshape(MODEL, groups, -1), 2, -1)
    score = {"forget_kernel": forget.reshape(MODEL, HEADS), "strength_kernel": strength.reshape(MODEL, HEADS)}
    score |= {"forget_rate": w["A_log"], "forget_bias": w["dt_bias"]}
    score |= {"gate_kernel": heads_of(gate), "gate_scale": w["norm.weight"]}
    score |= named(("query", "key", "value"), taps(w, (groups, groups, HEADS)))
    params = {"query": {"kernel": query}, "key": {"kernel": key}, "value": {"kernel": heads_of(value)}, "score": score}
    params["out"] = {"kernel": w["out_proj.weight"].T.reshape(HEADS, HEAD, MODEL)}
    # Their queries are divided by √H, which is a factor H of the norm's ε.
    spec = f"gated_delta(groups={groups}, conv=4, gate='norm_first', epsilon={config.rms_norm_eps * HEAD})"
    compare("Qwen3Next", layer, spec, params, MODEL)


def test_a_layer_of_mamba_2_is_a_row():
    """With a norm and a group of its own for each head; whole models of any groups are among the decoders."""
    inner = HEADS * HEAD
    sizes = {"num_heads": HEADS, "head_dim": HEAD, "state_size": HEAD, "n_groups": HEADS, "num_hidden_layers": 1}
    config = transformers.Mamba2Config(**sizes, hidden_size=inner, expand=1, chunk_size=4)
    layer, w = drawn(mamba.Mamba2Mixer(config, 0), 0.5)
    w["norm.weight"] = jnp.tile(w["norm.weight"][:HEAD], HEADS)  # ours is shared by the heads
    layer.norm.weight.data = torch.tensor(np.asarray(w["norm.weight"]))
    gate, value, key, query, step = jnp.split(w["in_proj.weight"].T, [inner, 2 * inner, 3 * inner, 4 * inner], -1)
    score = {"step_kernel": step, "step_bias": w["dt_bias"], "forget_rate": w["A_log"], "skip": w["D"]}
    score |= {"gate_kernel": heads_of(gate), "gate_scale": w["norm.weight"][:HEAD]}
    score |= named(("value", "key", "query"), taps(w, (HEADS,) * 3))
    pieces = {"query": query, "key": key, "value": value}
    params = {name: {"kernel": heads_of(kernel)} for name, kernel in pieces.items()} | {"score": score}
    params["out"] = {"kernel": w["out_proj.weight"].T.reshape(HEADS, HEAD, inner)}
    spec = f"state_space(conv=4, gate='gate_first', skip=True, epsilon={config.layer_norm_epsilon})"
    compare("Mamba2", layer, spec, params, inner)
