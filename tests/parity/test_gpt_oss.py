"""The attention of GPT-OSS (learned sinks, windows in every other layer, YaRN, biases) against transformers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.scores.rotary import Rotary
from models.layers.multi_head import MultiHeadAttention
from tests.parity.close import assert_layer, drawn, torch, transformers

LENGTH, WIDTH, HEADS, GROUPS, HEAD = 9, 16, 4, 2, 6
YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}
OURS = Rotary(base=300.0, scaling="yarn(factor=8, original=16, fast=4, slow=1, exact=True)")


def theirs(layer, x):
    """Random weights of a layer's attention, and its output for `x`."""
    from transformers.models.gpt_oss import modeling_gpt_oss as published

    config = transformers.GptOssConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=HEAD,
        sliding_window=3,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters=YARN | {"rope_theta": 300.0, "original_max_position_embeddings": 16},
        attn_implementation="eager",
    )
    module, arrays = drawn(published.GptOssAttention(config, layer), 1.0, seed=layer)
    with torch.no_grad():
        steps = torch.arange(LENGTH)
        behind = steps[:, None] - steps
        window = module.sliding_window or LENGTH
        mask = torch.where((behind >= 0) & (behind < window), 0.0, -torch.inf)[None, None]
        turns = published.GptOssRotaryEmbedding(config)(torch.tensor(x), steps[None])
        out, _ = module(torch.tensor(x), turns, mask)
    return arrays, out.numpy()


@pytest.mark.parametrize(("layer", "spec"), [(0, "sink(kv_heads=2, window=3)"), (1, "sink(kv_heads=2)")])
def test_attention_is_equal_whole_and_with_a_cache(layer, spec):
    x = np.random.default_rng(layer).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
    arrays, expected = theirs(layer, x)
    shapes = {"query": (HEADS, HEAD), "key": (GROUPS, HEAD), "value": (GROUPS, HEAD)}
    params = {
        side: {
            "kernel": arrays[f"{side[0]}_proj.weight"].T.reshape(WIDTH, *shape),
            "bias": arrays[f"{side[0]}_proj.bias"].reshape(shape),
        }
        for side, shape in shapes.items()
    }
    out = arrays["o_proj.weight"].T.reshape(HEADS, HEAD, WIDTH)
    params |= {"out": {"kernel": out, "bias": arrays["o_proj.bias"]}, "score": {"sink": arrays["sinks"]}}
    module = MultiHeadAttention(spec, HEADS, head=HEAD, rotary=OURS)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, dict(module.init(jax.random.key(0), jnp.asarray(x))["params"])
    )
    assert_layer(module, {"params": params}, x, expected, "GptOss", atol=2e-5, what="attention")
