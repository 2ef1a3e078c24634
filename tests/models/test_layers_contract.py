"""What every row of the table keeps to as a layer, with its projections, alignment and caches: one body for all."""

import dataclasses
import functools
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask, UsageError
from attention.score import Score
from attention.scores.differential import Differential, DifferentialV2
from attention.scores.sparse.deepseek import DeepSeekSparse
from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import MECHANISMS, resolve
from tests.models.small import apply, in_parts
from tests.sizes import once

LENGTH, WIDTH, HEADS = 7, 8, 2
# Options and free combinations that the plain rows do not show.
VARIANTS = (
    "dot_product(dim=3)",
    "dot_product(qk_norm='rms_offset')",
    "dot_product(align=True)",
    "super(per_head=True)",
    "super(key='linear', value='linear')",
    "neural(dim=None, hidden=(5,), activation='tanh', scale=True)",
    "neural(per_head=True, dim=3)",
    "neural(pairs='unique')",
    "neural(pairs='unique', per_head=True)",
    "neural(query='mlp', key='mlp', value='mlp', align=True)",
    "neural(key='identity', value='identity')",
    "additive(per_head=True, units=3)",
    "luong_general(per_head=True)",
    "gaussian(learn_sigma=True, sigma=0.5)",
    "gaussian(normalise=False, value='linear')",
    "gaussian(squared=False)",
    "gaussian(decay=0.3)",
    "gaussian(align=True)",
    "positional(per_head=False)",
    "linear(feature='identity', normalise=False)",
    "linear(align=True, value='identity')",
    "delta(query='mlp', out='identity')",
    "dot_product(kv_heads=1)",
    "neural(per_head=True, kv_heads=1)",
    "gaussian(kv_heads=1)",
    "gated_delta(kv_heads=1)",
    "gated_delta(conv=3, gate='norm_first', kv_heads=1)",
    "state_space(conv=3, gate='gate_first', skip=True)",
    "state_space(conv=3, gate='gate_first', skip=True, groups=1, state=5)",
    "kimi_delta(groups=1, state=5, gate='norm_first')",
    "neural(latent=3, kv_heads=1)",
    "gaussian(latent=5)",
    "gated_delta(latent=3)",
    "dot_product(latent=3, latent_norm=True, query_latent=5, rotary=2)",
    "neural(latent=3, rotary=2)",
    "super(output_gate='head')",
    "gated_delta(output_gate='elementwise')",
    "alibi(learned=True, normaliser='sink')",
    "moba(normaliser='blocks(size=2, top=2)', kv_heads=1)",
    "native_sparse(size=2, top=2, near=3, kv_heads=1)",
    "deepseek_sparse(heads=3, width=4, top=3, kv_heads=1)",
    "deepseek_sparse(heads=3, width=4, warm_up=True)",
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


def _drops_out(spec, name):
    """Whether a bias shifts the scores of a row alike: of keys where scores are linear in them; after a live ReLU."""
    if re.search(r"layer_[1-9]_bias", name) and "unique" not in spec:
        return True
    if spec == "native_sparse":  # none of its blocks of 64 keys is complete
        return bool(re.search(r"_(place|flat_\w+|out_kernel)'\]|\['key'\]\['bias'\]", name))
    if "deepseek_sparse" in spec and "['index_" in name:  # an indexer learns from a loss of its own
        return True
    linear_in_key = _is_linear_in_key(mechanism(spec).score)
    shifts = ["['key']['bias']", "['key']['down']['bias']", "['score']['down_key_bias']"]
    if mechanism(spec).key == "mlp_without_relu":
        shifts.append("['key']['norm']['bias']")
    return linear_in_key and name in shifts


def _is_linear_in_key(score):
    """Whether adding one vector to all keys adds one number to a row, which its normaliser forgives."""
    if isinstance(score, Differential | DifferentialV2 | DeepSeekSparse):
        return True
    if not (isinstance(score, Score) and score.traits.reads_key and score.weighing.shift_invariant):
        return False
    score = dataclasses.replace(score, normaliser="softmax")
    params = attention.init(score, jax.random.key(0), 1, 4, length=4)
    query, keys, shift = jax.random.normal(jax.random.key(1), (3, 1, 2, 1, 4))
    rows = [_two_scores(score, params, query, keys + moved) for moved in (0.0, shift[:, :1])]
    return bool(jnp.allclose(rows[0] - rows[0][0], rows[1] - rows[1][0], atol=1e-5))


def _two_scores(score, params, query, keys):
    """The scores of the first query with both keys, up to a number of the row: the logarithms of their weights."""
    options = {"return_weights": True, "implementation": "xla", "source": jnp.zeros((1, 2, 4))}
    options["mask"] = Mask(causal=True, query_offset=1)
    return jnp.log(attention.attend(score, params, query, keys, keys, **options)[1][0, 0, 0])


@pytest.mark.parametrize(("spec", "implementation"), once([pair for pair in ONE_EACH if mechanism(pair[0]).cross], FEW))
def test_nan_in_a_padded_source_reaches_nothing(x64, spec, implementation):
    mask, x, source = call_of(spec)
    clean = outcome(spec, implementation, mask, x, source)
    found = outcome(spec, implementation, mask, x, source.at[0, LENGTH - 2 :].set(jnp.nan))
    chex.assert_tree_all_finite(found)
    chex.assert_trees_all_close(found, clean, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("spec", "implementation"), once(BY_ROW, few("neural")))
def test_bfloat16_is_close(spec, implementation):
    mask = Mask(causal=True)
    params = params_of(layer(spec))
    low = apply(layer(spec, implementation, dtype=jnp.bfloat16), {"params": params}, tokens(), mask=mask)
    assert low.dtype == jnp.bfloat16
    exact = apply(layer(spec, implementation), {"params": params}, tokens(), mask=mask)
    largest = max(1.0, float(jnp.abs(exact).max()))
    chex.assert_trees_all_close(low.astype(jnp.float32), exact, atol=0.06 * largest)


@pytest.mark.parametrize(("spec", "implementation"), BY_ROW)
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


@pytest.mark.parametrize("spec", once(["dot_product", "super", "linear", "delta", "gated_delta(conv=3)"], ["delta"]))
def test_padding_in_a_cache(spec):
    """Tokens beyond `key_lengths` leave no trace in what the others give."""
    module = layer(spec)
    params, x, lengths = {"params": params_of(module)}, tokens(), jnp.array([3, LENGTH])
    whole = apply(module, params, x, mask=Mask(causal=True, key_lengths=lengths))
    step = lambda x, cache: apply(module, params, x, mask=Mask(key_lengths=lengths), cache=cache)  # noqa: E731
    out, _ = in_parts(step, x, module.init_cache(2, LENGTH, WIDTH), (2, LENGTH))
    chex.assert_trees_all_close(out, whole, atol=2e-5)


@pytest.mark.parametrize("spec", once(["dot_product", "super", "neural", "linear", "delta"], ["super"]))
def test_nan_in_padded_tokens_reaches_nothing(spec):
    """Of self-attention, whole and cached: neither other tokens nor a gradient."""
    module, lengths = layer(spec), jnp.array([4, LENGTH])
    params, mask = params_of(module), Mask(key_lengths=lengths)
    clean, dirty = tokens(), tokens().at[0, 4:].set(jnp.nan)
    real = mask.real_keys(LENGTH)[..., None]

    @jax.jit
    def scalar(params, x, cache=None):
        out = module.apply({"params": params}, x, mask=mask, cache=cache)
        out = out if cache is None else out[0]
        return jnp.sum(jnp.where(real, jnp.sin(out), 0.0))

    found, expected = map(jax.jit(jax.value_and_grad(scalar)), (params, params), (dirty, clean))
    chex.assert_trees_all_close(found, expected, atol=1e-5)
    cache = module.init_cache(2, LENGTH, WIDTH)
    chex.assert_trees_all_close(scalar(params, dirty, cache), scalar(params, clean, cache), atol=1e-5)


def test_an_alignment_minds_the_order_of_its_keys():
    """Queries of `super` are equivariant; keys are not invariant, for W^A is a table of positions."""
    module, order = layer("super"), jnp.array([3, 1, 6, 0, 2, 5, 4])
    params, x, source = {"params": params_of(module)}, tokens(), tokens(seed=6)
    out = apply(module, params, x, source)
    chex.assert_trees_all_close(apply(module, params, x[:, order], source), out[:, order], atol=1e-5)
    assert jnp.abs(apply(module, params, x, source[:, order]) - out).max() > 0.1
    padded = apply(module, params, x, source, mask=Mask(key_lengths=jnp.array([4, 4])))
    chex.assert_trees_all_close(padded, apply(module, params, x, source[:, :4]), atol=1e-5)


def test_a_full_cache_says_so():
    module = layer("dot_product")
    params, cache = {"params": params_of(module)}, module.init_cache(2, 4, WIDTH)
    _, cache = apply(module, params, tokens(length=3), cache=cache)
    with pytest.raises(UsageError, match="A cache of 4 tokens holds 3 already, so 2 more do not fit"):
        apply(module, params, tokens(length=2), cache=cache)


@pytest.mark.parametrize(
    "spec", once(["super", "positional", "positional_factorised", "neural(pairs='unique')"], ["super"])
)
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


@pytest.mark.parametrize("spec", once(["dot_product", "super", "neural", "positional", "linear"], ["neural"]))
def test_weights_of_a_layer(spec):
    module = layer(spec)
    params = {"params": params_of(module)}
    out, found = apply(module, params, tokens(), mask=Mask(causal=True), mutable="attention")
    (weights,) = jax.tree.leaves(found["attention"])
    chex.assert_shape(weights, (2, HEADS, LENGTH, LENGTH))
    chex.assert_trees_all_close(weights.sum(-1), jnp.ones((2, HEADS, LENGTH)), atol=1e-5)
    chex.assert_trees_all_close(apply(module, params, tokens(), mask=Mask(causal=True)), out, atol=1e-5)
    assert "attention" not in jax.eval_shape(module.init, jax.random.key(0), tokens())


@pytest.mark.more
def test_eight_devices_equal_one(run_python):
    """Every kind of score and of alignment, batch and parameters split, with dropout where there is some.

    In float32, relative to the largest number of an array; unscaled scores of tens amplify another order of sums most.
    """
    done = run_python("-m", "tests.models.layers.on_devices", devices=8)
    worst = json.loads(done.stdout.splitlines()[-1])
    assert set(worst) == set(ON_DEVICES)
    assert {name: error for name, error in worst.items() if not error < 1e-4} == {}


def test_grouped_heads_have_fewer_keys_and_values_in_parameters_and_cache():
    module = MultiHeadAttention("dot_product(kv_heads=2)", heads=4, length=LENGTH)
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)))["params"]
    assert params["key"]["kernel"].shape == params["value"]["kernel"].shape == (WIDTH, 2, 2)
    cache = module.init_cache(3, LENGTH, WIDTH)
    assert cache.key.shape == cache.value.shape == (3, LENGTH, 2, 2)
    with pytest.raises(UsageError, match="kv_heads=3 does not divide 4 heads"):
        MultiHeadAttention("dot_product(kv_heads=3)", 4, LENGTH).init(jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)))


def test_groups_of_queries_and_keys_have_fewer_and_wider_parameters_and_states():
    """As of Mamba-2: C and B of a group, X of each head, and a matrix P × H a head as the state."""
    spec = "state_space(groups=2, state=5, conv=3, gate='gate_first', skip=True)"
    module = MultiHeadAttention(spec, heads=4, length=LENGTH, bias=False, head=3)
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)))["params"]
    shapes = {name: params[name]["kernel"].shape for name in ("query", "key", "value", "out")}
    assert shapes == {"query": (WIDTH, 2, 5), "key": (WIDTH, 2, 5), "value": (WIDTH, 4, 3), "out": (4, 3, WIDTH)}
    assert params["score"]["key_taps"].shape == (3, 2, 5)
    assert params["score"]["gate_scale"].shape == (4, 3)
    state, last = module.init_cache(6, LENGTH, WIDTH).state
    assert state.shape == (6, 4, 3, 5)
    assert {part: x.shape for part, x in last.items()} == {
        **dict.fromkeys(("query", "key"), (6, 2, 2, 5)),
        "value": (6, 2, 4, 3),
    }


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("state_space(groups=3)", "groups=3 does not divide 4 heads"),
        ("state_space(groups=2, kv_heads=2)", "groups=2 are of queries and keys with a value a head; leave out"),
        ("gated_delta(groups=2, key='identity')", "leave out groups and state"),
        ("gated_delta(state=3, query='identity')", "leave out groups and state"),
    ],
)
def test_groups_that_cannot_be(spec, sentence):
    with pytest.raises(UsageError, match=sentence):
        MultiHeadAttention(spec, 4, LENGTH).init(jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)))


def test_a_window_is_the_masks():
    x, (params, causal) = tokens(), (params_of(layer("dot_product")), Mask(causal=True))
    out_of = lambda spec, mask: apply(layer(spec), {"params": params}, x, mask=mask)  # noqa: E731
    narrow = out_of("dot_product", Mask(causal=True, window=2))
    chex.assert_trees_all_equal(out_of("dot_product(window=2)", causal), narrow)
    chex.assert_trees_all_equal(out_of("dot_product(window=5)", Mask(causal=True, window=2)), narrow)
    assert not np.allclose(out_of("dot_product(window=5)", causal), narrow)
    module = layer("dot_product(window=2)")
    step = jax.jit(lambda x, cache: module.apply({"params": params}, x, cache=cache))
    out, _ = in_parts(step, x, module.init_cache(2, LENGTH, WIDTH), range(1, LENGTH + 1))
    chex.assert_trees_all_close(out, narrow, atol=1e-6)


def test_a_layer_needs_a_length_for_what_is_built_for_one_only():
    x = jnp.ones((1, LENGTH, WIDTH))
    MultiHeadAttention("neural(dim=2)", heads=HEADS).init(jax.random.key(0), x)
    for spec in ("super", "positional", "neural(pairs='unique')"):
        with pytest.raises(UsageError, match="is built for a fixed length; give its longest sequence as length"):
            MultiHeadAttention(spec, heads=HEADS).init(jax.random.key(0), x)
