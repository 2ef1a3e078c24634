"""The rows of Hosseini against its definitions, its parameter counts, and what a wrong name is told."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError, reference
from attention.scores.dot import DotProduct
from attention.scores.gaussian import Gaussian
from attention.scores.location import Location
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Neural
from models import mechanisms
from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import MECHANISMS, Align, Mechanism, resolve
from tests.models.small import apply, random_params
from train.mechanisms import layer_parameters

LENGTH, WIDTH, HEADS = 6, 8, 2


def layer(spec, **options):
    return MultiHeadAttention(resolve(spec, 1)[0], HEADS, LENGTH, **options)


def params_of(module):
    return random_params(module, jnp.zeros((1, LENGTH, WIDTH)))["params"]


@pytest.mark.parametrize(
    ("width", "length", "heads", "counts"),
    [
        (128, 64, 4, (66_048, 49_536, 33_024, 37_184)),
        (256, 257, 8, (263_168, 197_376, 131_584, 197_890)),
        (32, 32, 4, (4_224, 3_168, 2_112, 3_168)),
        (64, 64, 4, (16_640, 12_480, 8_320, 12_480)),
        (1024, 64, 4, (4_198_400, 3_148_800, 2_099_200)),
        (768, 196, 12, (2_362_368, 1_771_776, 1_181_184, 1_219_796)),
    ],
)
def test_parameter_counts_of_an_attention_layer(width, length, heads, counts):
    specs = ("dot_product", "optimised", "efficient", "super")[: len(counts)]
    assert tuple(layer_parameters(resolve(spec, 1)[0], width, heads, length) for spec in specs) == counts


DEFINITIONS = {  # and the kernels that they take, beside an alignment's
    "dot_product": (reference.standard_layer, ("query", "key", "value", "out")),
    "optimised": (reference.optimised_layer, ("query", "key", "out")),
    "efficient": (reference.efficient_layer, ("query", "out")),
    "super": (reference.super_layer, ("query", "out")),
}


@pytest.mark.parametrize("spec", DEFINITIONS)
def test_layers_equal_hosseinis_definitions(spec):
    """The definitions have no biases."""
    module, (definition, names) = layer(spec, implementation="xla"), DEFINITIONS[spec]
    without_bias = lambda path, leaf: leaf * ("bias" not in jax.tree_util.keystr(path))  # noqa: E731
    params = jax.tree_util.tree_map_with_path(without_bias, params_of(module))
    weights = {f"w_{name}": params[name]["kernel"].reshape(WIDTH, WIDTH) for name in names}
    weights |= {"w_align": params["align_kernel"]} if spec == "super" else {}
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    expected = jax.vmap(functools.partial(definition, **weights, heads=HEADS))(x)
    chex.assert_trees_all_close(apply(module, {"params": params}, x), expected, atol=1e-5)


@pytest.mark.parametrize(("spec", "identities"), [("optimised", ["value"]), ("efficient", ["key", "value"])])
def test_slices_are_dot_product_with_identity_kernels(spec, identities):
    params = params_of(layer("dot_product"))
    identity = {"kernel": jnp.eye(WIDTH).reshape(WIDTH, HEADS, -1), "bias": jnp.zeros((HEADS, WIDTH // HEADS))}
    full = params | dict.fromkeys(identities, identity)
    kept = {name: piece for name, piece in params.items() if name not in identities}
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    chex.assert_trees_all_close(
        apply(layer(spec), {"params": kept}, x), apply(layer("dot_product"), {"params": full}, x), atol=1e-6
    )


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
    chex.assert_trees_all_close(apply(module, {"params": params}, x, source), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("super(key='linear', per_head=True)", {"key": "linear", "value": "identity", "align": Align(per_head=True)}),
        ("neural(dim=3, query='mlp', align='per_head')", {"query": "mlp", "score": Neural(3), "align": Align(True)}),
        ("dot_product(align=True, window=2)", {"align": Align(), "window": 2}),
        ("super(align=False)", {"align": None}),
        ("bilinear(per_head=True)", {"name": "luong_general", "score": Bilinear(per_head=True)}),
    ],
)
def test_a_spec_string_combines_any_pieces(spec, expected):
    (built,) = resolve(spec, 1)
    assert built == dataclasses.replace(MECHANISMS[built.name], **expected)


ZHANG = {
    "mlp_qkv": (True, True),
    "dual_linear": (True, False),
    "mlp_roberta": (False, True),
    "decomposable": (False, True),
}


@pytest.mark.parametrize("spec", ZHANG)
def test_mlp_projections_are_zhangs_equation(spec):
    """W2 ReLU(LayerNorm(W1 x + b1)) + b2 (Zhang §3.2), without what the ablations leave out."""
    normed, rectified = ZHANG[spec]
    params = params_of(layer(spec))
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))

    def linear(weights, x):
        width = x.shape[-1]
        return x @ weights["kernel"].reshape(width, -1) + weights["bias"].reshape(1, 1, -1)

    def projected(weights):
        if "up" not in weights:
            return linear(weights, x)
        hidden = linear(weights["up"], x)
        if normed:
            centred = hidden - hidden.mean(-1, keepdims=True)
            hidden = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
            hidden = hidden * weights["norm"]["scale"][None, None] + weights["norm"]["bias"][None, None]
        return linear(weights["down"], jnp.maximum(hidden, 0) if rectified else hidden)

    query, value = projected(params["query"]), projected(params["value"])
    key = projected(params["key"]) if "key" in params else query  # one MLP of both
    heads = (side.reshape(3, LENGTH, HEADS, -1) for side in (query, key, value))
    scale = 1.0 if spec == "decomposable" else None
    out = jax.nn.dot_product_attention(*heads, scale=scale).reshape(3, LENGTH, WIDTH)
    expected = linear(params["out"], out)
    chex.assert_trees_all_close(apply(layer(spec), {"params": params}, x), expected, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class WithAWindow(DotProduct):
    window: float = 0.1


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ({"key": "linear", "score": Location()}, "reads no key"),
        ({"key": "none", "query": "none", "score": Location()}, "needs a query"),
        ({"score": WithAWindow()}, "The score WithAWindow cannot have an option window: rows have it"),
    ],
)
def test_pieces_that_do_not_fit_are_no_mechanism(pieces, message):
    with pytest.raises(UsageError, match=message):
        Mechanism("mine", "this test", **pieces)


def test_a_source_may_be_wider_where_all_is_projected():
    x, source = jnp.zeros((2, 4, WIDTH)), jnp.zeros((2, LENGTH, 12))
    assert jax.eval_shape(layer("neural").init_with_output, jax.random.key(0), x, source)[0].shape == x.shape
    with pytest.raises(UsageError, match=r"projection 'identity', so the source must be 8 wide.*not 12"):
        layer("efficient").init(jax.random.key(0), x, source)


@pytest.mark.parametrize(
    ("spec", "gate", "numbers"), [("dot_product", "elementwise", WIDTH // HEADS), ("delta", "head", 1)]
)
def test_a_gate_multiplies_the_heads_outputs(spec, gate, numbers):
    """Qiu et al. 2025, position G1: Y' = Y ⊙ σ(X W), X the queries' inputs, before the output projection."""
    gated, plain = layer(f"{spec}(output_gate={gate!r})"), layer(spec)
    x, source = jax.random.normal(jax.random.key(0), (2, 3, LENGTH, WIDTH))
    inputs = (x, source[:, :4]) if resolve(spec, 1)[0].cross else (x,)
    params = random_params(gated, *inputs)["params"]
    assert params["output_gate"]["kernel"].shape == (WIDTH, HEADS, numbers)
    split = {"out": {"kernel": jnp.eye(WIDTH).reshape(HEADS, -1, WIDTH), "bias": jnp.zeros(WIDTH)}}
    heads = np.asarray(apply(plain, {"params": {n: params[n] for n in params if n != "output_gate"} | split}, *inputs))
    w, b = (np.asarray(params["output_gate"][name], np.float64) for name in ("kernel", "bias"))
    factor = 1 / (1 + np.exp(-(np.tensordot(np.asarray(x, np.float64), w, 1) + b[None, None])))
    mixed = heads.reshape(3, LENGTH, HEADS, -1) * factor
    out = np.tensordot(mixed, np.asarray(params["out"]["kernel"]), 2) + np.asarray(params["out"]["bias"])[None, None]
    np.testing.assert_allclose(apply(gated, {"params": params}, *inputs), out, atol=1e-5)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_registered_row_is_as_good_as_any_other(monkeypatch):
    monkeypatch.setattr(mechanisms, "MECHANISMS", dict(MECHANISMS))
    mechanisms.register(Mechanism("near", "mine", score=Gaussian(0.1)))
    mechanisms.register(Mechanism("near", "mine", score=Gaussian(0.5)))  # a cell that is run again
    assert resolve("near(sigma=2.0, align=True)|near", 2) == (
        Mechanism("near", "mine", score=Gaussian(2.0), align=Align()),
        Mechanism("near", "mine", score=Gaussian(0.5)),
    )
    for row, message in (
        (Mechanism("super", "mine"), "There is an attention mechanism 'super' already"),
        (Mechanism("my-own", "mine"), "'my-own' cannot stand in a spec string"),
        (Mechanism("cycle", "mine"), "'cycle' cannot stand in a spec string"),
        (Gaussian(), r"register takes a Mechanism, not Gaussian\(normaliser='softmax', sigma=1.0"),
    ):
        with pytest.raises(UsageError, match=message):
            mechanisms.register(row)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("supper", r"Unknown attention mechanism 'supper'\. Did you mean 'super'\? Valid: additive, alibi, bilinear"),
        ("dot_product(per_head=True)", r"Unknown option of dot_product 'per_head'.*Valid: align, dim, key, kv_heads"),
        ("super(key='liner')", r"Unknown option key 'liner'\. Did you mean 'linear'"),
        ("super(kv_heads=2)", r"super has a projection 'identity', which makes all heads, so it takes no kv_heads=2"),
        ("dot_product(rotary=4)", r"rotary=4 is the part that turns beside a latent; give latent too"),
        ("dot_product(latent_norm=True)", r"dot_product has no latent to norm; give latent or query_latent too"),
        ("gated_delta(latent=4, rotary=2)", r"gated_delta takes no rotary=2, which is for scores of pairs"),
        ("super(align=False, per_head=True)", r"per_head belongs to the alignment, which align=False leaves out"),
        ("super(align='per_head', per_head=False)", r"contradict each other"),
        ("dot_product(align='head')", r"align must be True, False or 'per_head', not 'head'"),
        ("neural(value='tied')", r"keeps no keys as values, so value='tied' is impossible"),
        ("", r"mechanism is needed; choose from"),
    ],
)
def test_mistakes_are_one_sentence(spec, message):
    with pytest.raises(UsageError, match=message):
        resolve(spec, 2)
