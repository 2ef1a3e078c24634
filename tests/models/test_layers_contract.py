"""What every row of the table keeps to as a layer, with its projections, alignment and caches: one body for all."""

import functools
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError
from attention.defining.definition import reads_source
from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import MECHANISMS, resolve
from tests.models.small import apply, in_parts
from tests.sizes import once

LENGTH, WIDTH, HEADS = 7, 8, 2
# What the plain rows do not show of projections, alignments, groups of heads, latents and gates; the contract of
# `attention/` has the scores' own options.
VARIANTS = (
    "dot_product(align=True)",
    "super(per_head=True)",
    "neural(query='mlp', key='mlp', value='mlp', align=True)",
    "neural(key='identity', value='identity')",
    "gaussian(normalise=False, value='linear')",
    "gaussian(align=True)",
    "linear(align=True, value='identity')",
    "dot_product(kv_heads=1)",
    "neural(per_head=True, kv_heads=1)",
    "gaussian(kv_heads=1)",
    "gated_delta(conv=3, gate='norm_first', kv_heads=1)",
    "state_space(conv=3, gate='gate_first', skip=True, groups=1, state=5)",
    "gaussian(latent=5)",
    "gated_delta(latent=3)",
    "dot_product(latent=3, latent_norm=True, query_latent=5, rotary=2)",
    "super(output_gate='head')",
    "gated_delta(output_gate='elementwise')",
    "moba(normaliser='blocks(size=2, top=2)', kv_heads=1)",
    "native_sparse(size=2, top=2, near=3, kv_heads=1)",
    "deepseek_sparse(heads=3, width=4, top=3, kv_heads=1)",
    "path(rank=3, forget=True, kv_heads=1)",
)
SPECS = (*MECHANISMS, *VARIANTS)
FIXED = re.compile("super|positional|unique|align")


@functools.cache
def mechanism(spec):
    return resolve(spec, 1)[0]


def implementations(spec):
    """Those that a CPU runs at its own speed."""
    return [name for name in mechanism(spec).score.implementations if name not in ("cudnn", "pallas")]


# Each row with one implementation, the last it has; every implementation once for each kind of score. That all of
# them compute the same is `tests/attention/test_contract.py`'s to show.
ONE_EACH = [(spec, implementations(spec)[-1]) for spec in SPECS]
OF_EACH_SCORE = list({type(mechanism(spec).score): spec for spec in MECHANISMS}.values())
BY_ROW = [pair for pair in ONE_EACH if pair[0] in MECHANISMS]
ALL = ONE_EACH + [(spec, which) for spec in OF_EACH_SCORE for which in implementations(spec)[:-1]]

ON_DEVICES = [
    *OF_EACH_SCORE,
    "super",
    "neural(per_head=True, dim=3)",
    "neural(pairs='unique')",
    "mlp_qkv",
    "mlp_marian",
]


def layer(spec, implementation="auto", length=LENGTH, **options):
    return MultiHeadAttention(mechanism(spec), HEADS, length, implementation, **options)


def params_of(module, seed=0):
    """Random parameters; what follows the first ReLU of pairs is positive, so that it is seen through the others."""
    causal = Mask(causal=True)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)), mask=causal)["params"]
    noise = np.random.default_rng(seed)

    def draw(path, like):
        x = noise.normal(0.0, 0.6, like.shape)
        return jnp.asarray(abs(x) if re.search(r"layer_[1-9]_(kernel|bias)'\]$", jax.tree_util.keystr(path)) else x)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def tokens(batch=2, length=LENGTH, seed=5, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), (batch, length, WIDTH), dtype)


@functools.cache
def compiled(spec, implementation, dtype):
    """Output, and gradients of a generic scalar of it, as a function of a mask, parameters and inputs."""
    module = layer(spec, implementation, dtype=dtype)

    @jax.jit
    def run(mask, params, *inputs):
        def scalar(params, *inputs):
            out = module.apply({"params": params}, *inputs, mask=mask)
            return jnp.sum(jnp.sin(out)), out

        every = tuple(range(1 + len(inputs)))
        (_, out), gradients = jax.value_and_grad(scalar, argnums=every, has_aux=True)(params, *inputs)
        return out, gradients

    return run


def outcome(spec, implementation, mask, *inputs):
    return compiled(spec, implementation, inputs[0].dtype)(mask, params_of(layer(spec)), *inputs)


def call_of(spec):
    """Cross-attention from 5 tokens to 7 of which some are padding; causal self-attention where there is no other."""
    if mechanism(spec).cross:
        mask = Mask(key_lengths=jnp.array([LENGTH - 2, LENGTH]))
        return mask, tokens(length=5, dtype=jnp.float64), tokens(seed=6, dtype=jnp.float64)
    return Mask(causal=True), tokens(dtype=jnp.float64)


def few(*rows):
    """The layers of some rows, as `tests.sizes.once` keeps them."""
    return [pair for pair in BY_ROW if pair[0] in rows]


FEW = few("super", "neural", "delta")


@pytest.mark.parametrize(("spec", "implementation"), once(ONE_EACH, FEW))
def test_equals_the_reference_and_every_parameter_counts(x64, spec, implementation):
    """A gradient that were zero would be compared in vain."""
    found, expected = (outcome(spec, which, *call_of(spec)) for which in (implementation, "reference"))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)
    _, (gradients, *_) = found
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.abs(gradient).max() > 1e-9 or _drops_out(spec, name), f"{name} changes nothing."


# A bias of keys shifts the scores of a row alike where they are linear in the keys; so do those after a live ReLU.
SHIFTS = re.compile(r"\['key'\](\['down'\]|\['norm'\])?\['bias'\]|down_key_bias|layer_[1-9]_bias")


def _drops_out(spec, name):
    if SHIFTS.search(name):
        return True
    if spec == "native_sparse":  # none of its blocks of 64 keys is complete
        return bool(re.search(r"_(place|flat_\w+|out_kernel)'\]", name))
    return "deepseek_sparse" in spec and "['index_" in name  # an indexer learns from a loss of its own


@pytest.mark.parametrize(("spec", "implementation"), once([pair for pair in ONE_EACH if mechanism(pair[0]).cross], FEW))
def test_nan_in_a_padded_source_reaches_nothing(x64, spec, implementation):
    mask, x, source = call_of(spec)
    clean = outcome(spec, implementation, mask, x, source)
    found = outcome(spec, implementation, mask, x, source.at[0, LENGTH - 2 :].set(jnp.nan))
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, clean, rtol=0, atol=1e-12)


# Scores and recurrences that read the layer's inputs, beside the layers of each kind; the contract has all scores.
FROM_INPUTS = [pair for pair in BY_ROW if reads_source(mechanism(pair[0]).score)]


@pytest.mark.parametrize(("spec", "implementation"), once(BY_ROW, [*FEW, *FROM_INPUTS]))
def test_causality_by_gradient(spec, implementation):
    module, token = layer(spec, implementation), 3
    params = params_of(module)

    def at_token(x):
        return jnp.sum(module.apply({"params": params}, x, mask=Mask(causal=True))[:, token] ** 2)

    gradient = np.abs(np.asarray(jax.jit(jax.grad(at_token))(tokens()))).max(axis=(0, 2))
    assert not gradient[token + 1 :].any()
    assert np.all(gradient[: token + 1] > 0)


@pytest.mark.parametrize(("spec", "implementation"), once(ALL, [*FEW, *few("gaussian", "positional")]))
def test_cached_equals_uncached(spec, implementation):
    """A prefill of one token, of three, of all; then token by token."""
    module = layer(spec, implementation)
    params, x = {"params": params_of(module)}, tokens()
    whole = apply(module, params, x, mask=Mask(causal=True))
    step = jax.jit(lambda x, cache: module.apply(params, x, cache=cache))
    room = LENGTH if FIXED.search(spec) else LENGTH + 2  # what is not filled must not count
    for prefill in (1, 3, LENGTH):
        out, cache = in_parts(step, x, module.init_cache(2, room, WIDTH), range(prefill, LENGTH + 1))
        assert int(cache.length) == LENGTH
        chex.assert_trees_all_close(out, whole, atol=2e-5)


@pytest.mark.parametrize(("spec", "implementation"), once(FEW, few("super")))
def test_nan_in_padded_tokens_reaches_nothing(x64, spec, implementation):
    mask, x = Mask(key_lengths=jnp.array([4, LENGTH])), tokens(dtype=jnp.float64)
    found = outcome(spec, implementation, mask, x.at[0, 4:].set(jnp.nan))
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, outcome(spec, implementation, mask, x), rtol=0, atol=1e-12)


def test_a_full_cache_says_so():
    module = layer("dot_product")
    params, cache = {"params": params_of(module)}, module.init_cache(2, 4, WIDTH)
    _, cache = apply(module, params, tokens(length=3), cache=cache)
    with pytest.raises(UsageError, match="A cache of 4 tokens holds 3 already, so 2 more do not fit"):
        apply(module, params, tokens(length=2), cache=cache)


@pytest.mark.parametrize("spec", once(["super", "positional", "neural(pairs='unique')"], ["super"]))
def test_fixed_lengths_name_both_and_shorter_uses_the_leading_block(spec):
    module = layer(spec)
    params = {"params": params_of(module)}
    with pytest.raises(UsageError, match=f"at most {LENGTH} tokens, but this one has {LENGTH + 1}"):
        apply(module, params, tokens(length=LENGTH + 1))
    with pytest.raises(UsageError, match=f"at most {LENGTH} tokens, but this one has {LENGTH + 1}"):
        apply(module, params, tokens(length=1), cache=module.init_cache(2, LENGTH + 1, WIDTH))
    causal = Mask(causal=True)
    whole = apply(module, params, tokens(), mask=causal)
    chex.assert_trees_all_close(apply(module, params, tokens()[:, :4], mask=causal), whole[:, :4], atol=1e-6)


@pytest.mark.more
def test_eight_devices_equal_one(run_python):
    """Every kind of score and of alignment, batch and parameters split, with dropout where there is some.

    In float32, relative to the largest number of an array; unscaled scores of tens amplify another order of sums most.
    """
    done = run_python("-m", "tests.models.layers.on_devices", devices=8)
    worst = json.loads(done.stdout.splitlines()[-1])
    assert set(worst) == set(ON_DEVICES)
    assert {name: error for name, error in worst.items() if not error < 1e-4} == {}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("dot_product(kv_heads=3)", "kv_heads=3 does not divide 4 heads"),
        ("state_space(groups=3)", "groups=3 does not divide 4 heads"),
        ("state_space(groups=2, kv_heads=2)", "groups=2 are of queries and keys with a value a head; leave out"),
        ("gated_delta(groups=2, key='identity')", "leave out groups and state"),
        ("super", "is built for a fixed length; give its longest sequence as length"),
    ],
)
def test_layers_that_cannot_be_are_one_sentence(spec, sentence):
    with pytest.raises(UsageError, match=sentence):
        MultiHeadAttention(spec, heads=4).init(jax.random.key(0), tokens())


def test_a_window_is_the_masks_whole_and_cached():
    x, params = tokens(), {"params": params_of(layer("dot_product"))}
    narrow = apply(layer("dot_product"), params, x, mask=Mask(causal=True, window=2))
    module = layer("dot_product(window=2)")
    chex.assert_trees_all_equal(apply(module, params, x, mask=Mask(causal=True)), narrow)
    wider = apply(layer("dot_product(window=5)"), params, x, mask=Mask(causal=True, window=2))
    chex.assert_trees_all_equal(wider, narrow)
    step = jax.jit(lambda x, cache: module.apply(params, x, cache=cache))
    out, _ = in_parts(step, x, module.init_cache(2, LENGTH, WIDTH), range(1, LENGTH + 1))
    chex.assert_trees_all_close(out, narrow, atol=1e-6)
