"""The rows of Hosseini against its definitions, its parameter counts, and what a wrong name is told."""

import dataclasses
import re

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError, reference
from attention.forms import Tokens
from attention.score import Score, Traits
from attention.scores.dot import DotProduct
from attention.scores.gaussian import Gaussian
from attention.scores.location import Location
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Neural
from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import MECHANISMS, Align, Mechanism, register, resolve
from tests.conftest import ROOT
from tests.models.small import apply, in_parts, random_params
from tests.sizes import once
from train.state import count_parameters

LENGTH, WIDTH, HEADS = 6, 8, 2


def layer(spec, width=WIDTH, heads=HEADS, length=LENGTH, **options):
    return MultiHeadAttention(resolve(spec, 1)[0], heads, length, **options)


def params_of(module, width=WIDTH, length=LENGTH):
    return random_params(module, jnp.zeros((1, length, width)))["params"]


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
        assert count is None or count_parameters(params) == count


def without_biases(params):
    kernels = {name: piece["kernel"].reshape(WIDTH, WIDTH) for name, piece in params.items() if isinstance(piece, dict)}
    zeroed = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.zeros_like(x) if "bias" in jax.tree_util.keystr(path) else x, params
    )
    return kernels, zeroed


@pytest.mark.parametrize("implementation", once(["reference", "xla"], ["xla"]))
@pytest.mark.parametrize("spec", ["dot_product", "optimised", "efficient", "super"])
def test_layers_equal_hosseinis_definitions(spec, implementation):
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

    chex.assert_trees_all_close(apply(module, {"params": params}, x), jax.vmap(definitions[spec])(x), atol=1e-5)


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


@pytest.mark.more
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
    chex.assert_trees_all_close(apply(module, {"params": params}, x, source), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("super(key='linear', per_head=True)", {"key": "linear", "value": "identity", "align": Align(per_head=True)}),
        ("neural(dim=3, query='mlp', align='per_head')", {"query": "mlp", "score": Neural(3), "align": Align(True)}),
        ("neural(per_head=True)", {"score": Neural(per_head=True), "align": None}),
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


def test_a_score_may_read_the_queries_alone():
    row = Mechanism("location", "Luong et al. 2015, eq. 9", key="none", score=Location())
    module = MultiHeadAttention(row, HEADS, LENGTH)
    params = params_of(module)
    assert set(params) == {"query", "value", "out", "score"}
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    whole = apply(module, {"params": params}, x, mask=Mask(causal=True))
    cache = module.init_cache(3, LENGTH, WIDTH)
    assert cache.key is None
    step = lambda x, cache: apply(module, {"params": params}, x, cache=cache)  # noqa: E731
    chex.assert_trees_all_close(in_parts(step, x, cache, (4, LENGTH))[0], whole, atol=1e-5)
    for wrong, message in (({"key": "linear"}, "reads no key"), ({"query": "none"}, "needs a query")):
        with pytest.raises(UsageError, match=message):
            dataclasses.replace(row, **wrong)


def test_keys_are_kept_where_a_score_says_so():
    key, rows = jnp.ones((1, LENGTH, HEADS, 4)), [row.score for row in MECHANISMS.values()]
    keep = [score for score in (*rows, DotProduct(dim=2), DotProduct(qk_norm="rms")) if score.traits.keeps_keys]
    assert DotProduct() in keep
    assert all(score.prepare_key({}, key, Tokens(0, key)) is key for score in keep)


@dataclasses.dataclass(frozen=True)
class KeysAlone(Score):
    traits = Traits(reads_query=False)


def test_keys_share_no_projection_with_queries_that_have_none():
    with pytest.raises(UsageError, match="keys projects no queries, so key='shared' is impossible"):
        Mechanism("keys", "", query="none", key="shared", score=KeysAlone())


@pytest.mark.more
@pytest.mark.parametrize(
    "spec",
    once(
        ["luong_dot", "luong_general", "decomposable", "dot_product", "dot_product(scale=3.0)", "dot_product(dim=64)"],
        ["luong_dot", "dot_product(dim=64)"],
    ),
)
def test_scores_start_near_one_whatever_their_scale(spec):
    module = layer(spec, width=256, heads=4, length=64)
    x = jax.random.normal(jax.random.key(0), (1, 64, 256))
    params = jax.jit(module.init)(jax.random.key(1), x)
    _, found = apply(module, params, x, mutable="attention")
    (weights,) = jax.tree.leaves(found)
    off_diagonal = jnp.log(weights[~jnp.eye(64, dtype=bool)[None, None].repeat(4, 1)])
    assert 0.3 < float(off_diagonal.std()) < 1.6


@pytest.mark.more
def test_cross_attention_from_a_wider_source():
    """Keys and values are projected from any width to that of the queries; slices cannot be."""
    x, source = (jax.random.normal(jax.random.key(s), (2, n, w)) for s, n, w in ((5, 4, WIDTH), (6, LENGTH, 12)))
    for spec in ("dot_product", "mlp_qkv", "delta", "neural"):
        out, _ = jax.eval_shape(layer(spec).init_with_output, jax.random.key(0), x, source)
        assert out.shape == x.shape
    for spec, piece in (("efficient", "identity"), ("decomposable", "shared")):
        with pytest.raises(UsageError, match=f"projection '{piece}', so the source must be 8 wide.*not 12"):
            layer(spec).init(jax.random.key(0), x, source)


@pytest.mark.parametrize(("gate", "numbers"), [("elementwise", WIDTH // HEADS), ("head", 1)])
@pytest.mark.parametrize("spec", ["dot_product", "delta", "neural(dim=2, kv_heads=1)"])
def test_a_gate_multiplies_the_heads_outputs(spec, gate, numbers):
    """Qiu et al. 2025, position G1: Y' = Y ⊙ σ(X W), X the queries' inputs, before the output projection."""
    gated, plain = layer(f"{spec.rstrip(')')}{', ' if '(' in spec else '('}output_gate={gate!r})"), layer(spec)
    cross = resolve(spec, 1)[0].cross
    x, source = jax.random.normal(jax.random.key(0), (2, 3, LENGTH, WIDTH))
    inputs = (x, source[:, :4]) if cross else (x,)
    params = random_params(gated, *inputs)["params"]
    assert params["output_gate"]["kernel"].shape == (WIDTH, HEADS, numbers)
    split = {"out": {"kernel": jnp.eye(WIDTH).reshape(HEADS, -1, WIDTH), "bias": jnp.zeros(WIDTH)}}
    heads = np.asarray(apply(plain, {"params": {n: params[n] for n in params if n != "output_gate"} | split}, *inputs))
    w, b = (np.asarray(params["output_gate"][name], np.float64) for name in ("kernel", "bias"))
    factor = 1 / (1 + np.exp(-(np.tensordot(np.asarray(x, np.float64), w, 1) + b[None, None])))
    mixed = heads.reshape(3, LENGTH, HEADS, -1) * factor
    out = np.tensordot(mixed, np.asarray(params["out"]["kernel"]), 2) + np.asarray(params["out"]["bias"])[None, None]
    np.testing.assert_allclose(apply(gated, {"params": params}, *inputs), out, atol=1e-5)


@pytest.fixture
def own_rows():
    """The table is afterwards what it was before."""
    before = dict(MECHANISMS)
    yield
    MECHANISMS.clear()
    MECHANISMS.update(before)


@pytest.mark.usefixtures("own_rows")
def test_a_registered_row_is_as_good_as_any_other():
    with pytest.raises(UsageError, match="Unknown attention mechanism 'near'"):
        resolve("near", 1)
    register(Mechanism("near", "mine", value="linear", score=Gaussian(0.5)))
    assert resolve("near(sigma=2.0, align=True)|near", 2) == (
        Mechanism("near", "mine", score=Gaussian(2.0), align=Align()),
        Mechanism("near", "mine", score=Gaussian(0.5)),
    )
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, WIDTH))
    params = random_params(layer("near"), x)
    same = apply(layer("gaussian(sigma=0.5, value='linear')"), params, x)
    chex.assert_trees_all_equal(apply(layer("near"), params, x), same)
    register(Mechanism("near", "mine", score=Gaussian(0.1)))  # a cell that is run again
    assert resolve("near", 1)[0].score == Gaussian(0.1)


@pytest.mark.usefixtures("own_rows", "unchecked_shapes")
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Mechanism("super", "mine"), "There is an attention mechanism 'super' already"),
        (Mechanism("my-own", "mine"), "'my-own' cannot stand in a spec string"),
        (Mechanism("lambda", "mine"), "'lambda' cannot stand in a spec string"),
        (Mechanism("cycle", "mine"), "'cycle' cannot stand in a spec string"),
        (Gaussian(), r"register takes a Mechanism, not Gaussian\(normaliser='softmax', sigma=1.0"),
    ],
)
def test_what_cannot_be_registered(row, message):
    before = dict(MECHANISMS)
    with pytest.raises(UsageError, match=message):
        register(row)
    assert before == MECHANISMS


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("supper", r"Unknown attention mechanism 'supper'\. Did you mean 'super'\? Valid: additive, alibi, bilinear"),
        (
            "dot_product(per_head=True)",
            r"Unknown option of dot_product 'per_head'.*Valid: align, dim, key, kv_heads, latent, latent_norm",
        ),
        ("super(key='liner')", r"Unknown option key 'liner'\. Did you mean 'linear'"),
        ("super(kv_heads=2)", r"super has a projection 'identity', which makes all heads, so it takes no kv_heads=2"),
        ("dot_product(rotary=4)", r"rotary=4 is the part that turns beside a latent; give latent too"),
        ("dot_product(latent_norm=True)", r"dot_product has no latent to norm; give latent or query_latent too"),
        ("dot_product(query='identity', query_latent=4)", r"a projection 'identity', .* takes no query_latent=4"),
        ("gated_delta(latent=4, rotary=2)", r"gated_delta takes no rotary=2, which is for scores of pairs"),
        ("dot_product(latent=4, rotary=2, qk_norm='rms')", r"dot_product takes no rotary=2, which is for scores of pa"),
        ("super(align=False, per_head=True)", r"per_head belongs to the alignment, which align=False leaves out"),
        ("super(align='per_head', per_head=False)", r"contradict each other"),
        ("dot_product(align='head')", r"align must be True, False or 'per_head', not 'head'"),
        ("neural(value='tied')", r"keeps no keys as values, so value='tied' is impossible"),
        ("dot_product(key='none')", r"needs a key, so key='none' is impossible"),
        ("positional(query='linear')", r"reads no query, so query='linear' is impossible"),
        ("", r"mechanism is needed; choose from"),
    ],
)
def test_mistakes_are_one_sentence(spec, message):
    with pytest.raises(UsageError, match=message):
        resolve(spec, 2)


def test_a_further_linear_layer_is_neurals_without_its_mlp():
    """DiGiugno §4.1 asks what the additional linear layer alone would do: it has the same shapes, and stays linear."""
    module, neural = layer("dot_product(dim=3)"), layer("neural(dim=3)")
    params, theirs = params_of(module), params_of(neural)
    further = params["score"]
    down = {name: x.shape for name, x in theirs["score"].items() if name.startswith("down")}
    assert {name: x.shape for name, x in further.items()} == down
    x = jax.random.normal(jax.random.key(5), (3, LENGTH, WIDTH))
    _, found = apply(module, {"params": params}, x, mutable="attention")
    (weights,) = jax.tree.leaves(found)

    def compared(side):
        heads = jnp.einsum("bld,dnh->blnh", x, params[side]["kernel"]) + params[side]["bias"][None, None]
        return heads @ further[f"down_{side}_kernel"] + further[f"down_{side}_bias"][None, None, None]

    scores = jnp.einsum("bqnc,bknc->bnqk", compared("query"), compared("key")) / 3**0.5
    chex.assert_trees_all_close(weights, jax.nn.softmax(scores), atol=1e-6)


@pytest.mark.parametrize("option", ["kv_heads", "start", "cost", "title"])
def test_an_option_of_a_score_does_not_hide_what_rows_and_scores_have(option):
    kind = dataclasses.make_dataclass("Mine", [(option, float, 0.1)], bases=(DotProduct,), frozen=True)
    with pytest.raises(UsageError, match=f"The score Mine cannot have an option {option}"):
        Mechanism("mine", "this test", score=kind())


def test_the_hybrid_that_the_page_recommends_has_a_dot_product_in_every_fourth_of_eight_layers():
    page = (ROOT / "docs/mechanisms/recurrences.md").read_text(encoding="utf-8")
    (spec,) = re.findall(r"`(cycle\(kimi_delta[^`]+)` makes every fourth layer a dot product, at any", page)
    assert [layer.name for layer in resolve(spec, 8)] == [*["kimi_delta"] * 3, "dot_product"] * 2
