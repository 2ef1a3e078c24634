"""The rows of 004 against its definitions, its parameter counts, and what a wrong name is told."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, UsageError, reference
from models.flops import parameters
from models.layers import MultiHeadAttention
from models.mechanisms import MECHANISMS, Align, Mechanism, resolve

LENGTH, WIDTH, HEADS = 6, 8, 2


def layer(spec, width=WIDTH, heads=HEADS, length=LENGTH, **options):
    return MultiHeadAttention(resolve(spec, 1)[0], heads, length, **options)


def params_of(module, width=WIDTH, length=LENGTH, seed=0):
    params = module.init(jax.random.key(seed), jnp.zeros((1, length, width)))["params"]
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) / 2 for k, x in zip(keys, leaves, strict=True)])


@pytest.mark.parametrize(
    ("width", "length", "heads", "counts"),
    [
        (128, 64, 4, (66_048, 49_536, 33_024, 37_184)),
        (256, 257, 8, (263_168, 197_376, 131_584, 197_890)),
        (32, 32, 4, (4_224, 3_168, 2_112, 3_168)),
        (64, 64, 4, (16_640, 12_480, 8_320, 12_480)),
        (1024, 64, 4, (4_198_400, 3_148_800, 2_099_200, None)),
        (768, 196, 12, (2_362_368, 1_771_776, 1_181_184, 1_219_796)),
    ],
)
def test_parameter_counts_of_an_attention_layer(width, length, heads, counts):
    for spec, count in zip(("dot_product", "optimised", "efficient", "super"), counts, strict=True):
        module = layer(spec, heads=heads, length=length)
        params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, length, width)))["params"]
        assert count is None or parameters(params) == count


def without_biases(params):
    kernels = {name: piece["kernel"].reshape(WIDTH, WIDTH) for name, piece in params.items() if isinstance(piece, dict)}
    zeroed = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.zeros_like(x) if "bias" in jax.tree_util.keystr(path) else x, params
    )
    return kernels, zeroed


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("spec", ["dot_product", "optimised", "efficient", "super"])
def test_layers_equal_004s_definitions(spec, implementation):
    module = layer(spec, implementation=implementation)
    kernels, params = without_biases(params_of(module))
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    definitions = {
        "dot_product": lambda x: reference.standard_layer(x, **weights("query", "key", "value", "out"), heads=HEADS),
        "optimised": lambda x: reference.optimised_layer(x, **weights("query", "key", "out"), heads=HEADS),
        "efficient": lambda x: reference.efficient_layer(x, **weights("query", "out"), heads=HEADS),
        "super": lambda x: reference.super_layer(
            x, **weights("query", "out"), w_align=params["align_kernel"], heads=HEADS
        ),
    }

    def weights(*names):
        return {f"w_{name}": kernels[name] for name in names}

    chex.assert_trees_all_close(module.apply({"params": params}, x), jax.vmap(definitions[spec])(x), atol=1e-5)


def test_super_with_identity_alignment_is_efficient():
    module = layer("super")
    params = params_of(module)
    params = params | {"align_kernel": jnp.eye(LENGTH), "align_bias": jnp.zeros(LENGTH)}
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    efficient = {name: params[name] for name in ("query", "out")}
    chex.assert_trees_all_close(
        module.apply({"params": params}, x), layer("efficient").apply({"params": efficient}, x), atol=1e-6
    )


@pytest.mark.parametrize(("spec", "identities"), [("optimised", ["value"]), ("efficient", ["key", "value"])])
def test_slices_are_dot_product_with_identity_kernels(spec, identities):
    params = params_of(layer("dot_product"))
    identity = {"kernel": jnp.eye(WIDTH).reshape(WIDTH, HEADS, -1), "bias": jnp.zeros((HEADS, WIDTH // HEADS))}
    full = params | dict.fromkeys(identities, identity)
    kept = {name: piece for name, piece in params.items() if name not in identities}
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    chex.assert_trees_all_close(
        layer(spec).apply({"params": kept}, x), layer("dot_product").apply({"params": full}, x), atol=1e-6
    )


@pytest.mark.parametrize("spec", MECHANISMS)
def test_causal_layers_by_gradient(spec):
    module = layer(spec)
    params = params_of(module)
    x = jax.random.normal(jax.random.key(5), (2, LENGTH, WIDTH))

    def at_token(x):
        return jnp.sum(module.apply({"params": params}, x, mask=Mask(causal=True))[:, 2] ** 2)

    gradient = jax.grad(at_token)(x)
    assert jnp.all(gradient[:, 3:] == 0)
    assert jnp.all(jnp.abs(gradient[:, :3]).sum((0, 2)) > 0)


def test_one_alignment_per_head_is_wider_and_differs():
    module = layer("super(per_head=True)")
    params = params_of(module)
    chex.assert_shape(params["align_kernel"], (HEADS, LENGTH, LENGTH))
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    shared = params | {name: params[name][0] for name in ("align_kernel", "align_bias")}
    alike = params | {name: jnp.stack([params[name][0]] * HEADS) for name in ("align_kernel", "align_bias")}
    one = layer("super").apply({"params": shared}, x)
    chex.assert_trees_all_close(module.apply({"params": alike}, x), one, atol=1e-6)
    assert jnp.abs(module.apply({"params": params}, x) - one).max() > 0.1


def test_alignment_starts_glorot_uniform_without_bias():
    module = MultiHeadAttention(resolve("super", 1)[0], 4, 200)
    params = module.init(jax.random.key(0), jnp.zeros((1, 200, 8)))["params"]
    limit = (6 / 400) ** 0.5
    assert jnp.abs(params["align_kernel"]).max() <= limit
    assert abs(float(params["align_kernel"].std()) - limit / 3**0.5) < 0.01 * limit
    assert not params["align_bias"].any()


def test_cross_attention_reads_keys_and_values_from_the_source():
    module = layer("dot_product")
    params = params_of(module)
    x, source = (jax.random.normal(jax.random.key(s), (2, n, WIDTH)) for s, n in ((5, 4), (6, LENGTH)))
    q, k, v = (
        nn.DenseGeneral((HEADS, WIDTH // HEADS)).apply({"params": params[name]}, y)
        for name, y in (("query", x), ("key", source), ("value", source))
    )
    heads = jax.nn.dot_product_attention(q, k, v)
    expected = nn.DenseGeneral(WIDTH, axis=(-2, -1)).apply({"params": params["out"]}, heads)
    chex.assert_trees_all_close(module.apply({"params": params}, x, source), expected, atol=1e-5)


def test_any_combination_of_pieces():
    (built,) = resolve("super(key='linear', per_head=True)", 1)
    assert built == Mechanism(
        "super", MECHANISMS["super"].source, key="linear", value="identity", align=Align(per_head=True)
    )


def test_one_mechanism_a_layer_and_the_last_repeats():
    names = [mechanism.name for mechanism in resolve("super|efficient|dot_product", 5)]
    assert names == ["super", "efficient", "dot_product", "dot_product", "dot_product"]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("supper", r"Unknown attention mechanism 'supper'\. Did you mean 'super'\? Valid: dot_product, efficient"),
        ("super(perhead=True)", r"Unknown option of super 'perhead'\. Did you mean 'per_head'"),
        (
            "dot_product(per_head=True)",
            r"Unknown option of dot_product 'per_head'.*Valid: key, out, query, scale, value",
        ),
        ("super(key='liner')", r"Unknown key projection 'liner'\. Did you mean 'linear'"),
        ("super(per_head=3)", r"True or False, not 3"),
        ("dot_product(scale='x')", r"must be a number of at least 0, not 'x'"),
        ("super|super|super", r"names 3 layers, but the model has 2"),
        ("", r"mechanism is needed; choose from"),
    ],
)
def test_mistakes_are_one_sentence(spec, message):
    with pytest.raises(UsageError, match=message):
        resolve(spec, 2)
