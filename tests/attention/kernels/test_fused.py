"""Any function of a pair in one kernel: what fuses, interpreted against `xla`, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.nn import initializers

import attention
from attention import Mask, UnsupportedError, attend, init, shared
from attention.kernels import fused, xla
from attention.kernels.call import Call, common
from attention.kernels.fused import tpu
from attention.options import Options
from attention.parameters import Parameter
from attention.score import Score
from tests.attention.cases import MASKS, assert_close, outcome
from tests.sizes import more, once

HEADS, WIDTH = 4, 6


def written(function, shapes=(), **options):
    """A score as somebody might write it, of a function of a pair and the shape of each array, one for each head."""

    @dataclasses.dataclass(frozen=True)
    class Written(Score):
        def parameters(self, sizes):
            normal = initializers.normal(0.5)
            return {name: Parameter((sizes.heads, *shape), normal, ("heads",)) for name, shape in shapes}

        def pair(self, params, query, key, at):
            return function(params, query, key, at)

    return Written(**options)


def mlp(p, q, k, at):
    hidden = jax.nn.relu(p["first"] @ jnp.concatenate([q, k]) + p["bias"])
    return p["vector"] @ jnp.tanh(p["third"] @ jax.nn.silu(p["second"] @ hidden))


def distance(q, k):
    return jnp.sqrt(jnp.sum((q - k) ** 2) + 1e-3)


MLP = (("first", (3, 2 * WIDTH)), ("bias", (3,)), ("second", (2, 3)), ("third", (2, 2)), ("vector", (2,)))
TAU, SQUARE = (("tau", ()),), (("kernel", (WIDTH, WIDTH)),)
FUSED = {
    "dot product": (lambda p, q, k, at: q @ k, ()),
    "scaled": (lambda p, q, k, at: q @ k * q.shape[-1] ** -0.5, ()),
    "cosine": (lambda p, q, k, at: jnp.exp(p["tau"]) * q @ k / jnp.sqrt((q @ q + 0.1) * (k @ k + 0.1)), TAU),
    "alibi": (lambda p, q, k, at: q @ k - jnp.exp(p["tau"]) * jnp.abs(at.query - at.key), TAU),
    "alibi by head": (lambda p, q, k, at: q @ k - 2.0 ** -(at.head + 1) * (at.query - at.key), ()),
    "soft_cap": (lambda p, q, k, at: p["tau"] * jnp.tanh(q @ k / (p["tau"] ** 2 + 1)), TAU),
    "l1": (lambda p, q, k, at: -jax.nn.softplus(p["tau"]) * jnp.abs(q - k).sum(), TAU),
    "gaussian": (lambda p, q, k, at: -jnp.exp(p["tau"]) * jnp.sum((q - k) ** 2), TAU),
    "distance": (lambda p, q, k, at: -distance(q, k), ()),
    "inverse distance": (lambda p, q, k, at: 1 / (1 + distance(q, k)), ()),
    "student": (lambda p, q, k, at: -jnp.log1p(jnp.sum(jnp.square(q - k))), ()),
    "largest": (lambda p, q, k, at: jnp.max(q * k), ()),
    "smallest of sums": (lambda p, q, k, at: jnp.min(q + k), ()),
    "softmax over H": (lambda p, q, k, at: jax.nn.softmax(q * k) @ (q + k), ()),
    "logsumexp over H": (lambda p, q, k, at: jax.nn.logsumexp(q + k), ()),
    "three layers": (mlp, MLP),
    "additive": (lambda p, q, k, at: p["vector"] @ jnp.tanh(q + k), (("vector", (WIDTH,)),)),
    "bilinear": (lambda p, q, k, at: q @ p["kernel"] @ k, SQUARE),
    "diagonal": (lambda p, q, k, at: jnp.sum(q * p["vector"] * k), (("vector", (WIDTH,)),)),
    "gated": (lambda p, q, k, at: q @ k * jax.nn.sigmoid(q[0] + k[0]), ()),
    "halves": (lambda p, q, k, at: q[:3] @ k[3:] + jnp.maximum(q[3:], k[:3]).sum(), ()),
    "reversed": (lambda p, q, k, at: q @ k[::-1] + jnp.minimum(q[::-1], k).sum(), ()),
    "stacked": (lambda p, q, k, at: jnp.concatenate([q * k, q + k, jnp.abs(q)]).max(), ()),
    "as a matrix": (lambda p, q, k, at: jnp.sum(q.reshape(2, 3).T * k.reshape(3, 2)), ()),
    "outer": (lambda p, q, k, at: jnp.tanh(jnp.outer(q, k)).sum(), ()),
    "periodic": (lambda p, q, k, at: q @ k + jnp.cos(p["tau"] * (at.query - at.key)), TAU),
    "kinked": (lambda p, q, k, at: jax.nn.leaky_relu(q @ k) + jnp.where(at.query > at.key, 0.5, 0.0), ()),
    "polynomial": (lambda p, q, k, at: (q @ k + 1) ** 3 / 9, ()),
    "gelu of sums": (lambda p, q, k, at: jax.nn.gelu(q + k).mean(), ()),
    "of the query alone": (lambda p, q, k, at: q.sum(), ()),
}


def floored(x):
    return jnp.floor(2 * x).astype(jnp.int32)


@jax.custom_jvp
def doubled(q, k):
    return (2 * q) @ k


doubled.defjvp(lambda x, d: (doubled(*x), 2 * (d[0] @ x[1] + x[0] @ d[1])))
ODD = {  # shapes that are cut, spread and joined, and derivatives of one's own
    "larger outer": (lambda p, q, k, at: jnp.tanh(jnp.outer(jnp.tile(q, 2), jnp.tile(k, 2))).sum(), ()),
    "largest of each row": (lambda p, q, k, at: (q - k).reshape(2, 3).max(1).sum(), ()),
    "every other": (lambda p, q, k, at: jnp.abs(q - k)[::2].sum() + jnp.abs(jnp.tile(q - k, 3))[1::4].sum(), ()),
    "spread products": (lambda p, q, k, at: jnp.sum(jnp.full((4, 1), q @ k) * k[None, :4] * jnp.ones((4, 4))), ()),
    "recomputed": (lambda p, q, k, at: jax.checkpoint(lambda q, k: jnp.sin(q) @ jnp.cos(k))(q, k), ()),
    "a derivative of its own": (lambda p, q, k, at: doubled(q, k), ()),
    "sum of sums": (lambda p, q, k, at: (q + k).sum(), ()),
    "whole numbers of the query": (lambda p, q, k, at: (floored(q) * (at.query - at.key)).astype(q.dtype) @ k, ()),
    "whole numbers of the key": (lambda p, q, k, at: (floored(k) * (at.query - at.key)).astype(q.dtype) @ q / 9, ()),
    "gated by the head": (lambda p, q, k, at: (q / (1 + (p["tau"] * k) ** 2)).sum(), TAU),
}
LOOPED = {
    "sorted": (lambda p, q, k, at: jnp.sort(q * k)[0], (), "sort"),
    "running sums": (lambda p, q, k, at: jnp.cumsum(q * k).max(), (), "cumsum"),
    "a maximum of sums": (lambda p, q, k, at: jnp.max(p["kernel"] @ jnp.tanh(q + k)), SQUARE, "maximum of sums"),
    "many numbers": (lambda p, q, k, at: jnp.sum(jnp.tanh(p["kernel"] @ (q + k))), (("kernel", (40, WIDTH)),), "240"),
}


def case(name, mask=None, shape=(2, 20, 27), normaliser="softmax", rate=0.0, groups=2):
    """A function of parameters, queries, keys and values to a call, and these arrays."""
    function, shapes, *_ = (FUSED | ODD | LOOPED)[name]
    score = written(function, shapes, normaliser=normaliser)
    batch, queries, keys = shape
    random = iter(jax.random.split(jax.random.key(0), 16))
    sizes = {n: (HEADS, *s) for n, s in shapes} | ({"sink": (HEADS,)} if "learned" in normaliser else {})
    params = {n: jax.random.normal(next(random), s) / 2 for n, s in sizes.items()}
    arrays = [jax.random.normal(next(random), (batch, n, *rest)) for n, *rest in
              ((queries, HEADS, WIDTH), (keys, groups, WIDTH), (keys, groups, 5))]  # fmt: skip
    options = Options(mask, None, rate, jax.random.key(7))

    def call(params, query, key, value):
        value = options.mask.without_unreachable(value, queries, 4)
        fields = common(queries, HEADS, value, options) | {"normaliser": score.weighing, "params": params}
        return Call(score=score, query=query, key=key, block=(16, 8), **fields)

    return call, [params, *arrays]


def passes(attends, name, **options):
    """The output, and all gradients for some gradient of it."""
    call, arrays = case(name, **options)
    return outcome(lambda *x: attends(call(*x))[0], *arrays)


def assert_equal(name, tolerance=1e-10, **options):
    assert_close(passes(fused.attend, name, **options), passes(xla.attend, name, **options), tolerance)


KEPT = ["l1", "alibi", "three layers", "softmax over H", "as a matrix"]
KEPT += ["every other", "largest of each row", "gated by the head", "sum of sums"]
KEPT += ["whole numbers of the query", "whole numbers of the key"]


@pytest.mark.parametrize("name", once(FUSED | ODD, KEPT))
def test_pairs_that_people_write_fuse_and_equal_xla_with_all_gradients(name, x64):
    assert len(FUSED) == 30
    assert_equal(name, mask=Mask(causal=True))


@pytest.mark.parametrize("name", once(KEPT, KEPT[:2]))
def test_gradients_are_the_same_in_two_passes(name, x64, monkeypatch):
    call, arrays = case(name)

    def kernels():
        gradient = jax.grad(lambda *x: fused.attend(call(*x))[0].sum(), range(4))
        return {
            found
            for found in ("pair_d_all", "pair_d_query", "pair_d_key")
            if found in str(jax.make_jaxpr(gradient)(*arrays))
        }

    assert kernels() == {"pair_d_all"}
    monkeypatch.setattr(tpu, "MOST_SUMMED", 0)
    assert kernels() == {"pair_d_query", "pair_d_key"}
    assert_equal(name, mask=Mask(causal=True), rate=0.3)


@pytest.mark.parametrize("name", ["bilinear", more("soft_cap")])
def test_in_bfloat16_is_near_to_float32(name):
    call, arrays = case(name, mask=Mask(causal=True))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    actual = outcome(lambda *x: fused.attend(call(*x))[0], *half)
    assert_close(actual, outcome(lambda *x: xla.attend(call(*x))[0], *single), 0.02)


@pytest.mark.parametrize("mask", once(MASKS, ["causal window of a cache", "causal lengths", "causal segments"]))
def test_every_mask_it_takes_equals_xla(mask, x64):
    assert_equal("l1", mask=MASKS[mask], rate=0.3)


@pytest.mark.parametrize(
    "normaliser", ["sigmoid", "sink(learned=True)", "softpick", more("relu_squared"), more("sink")]
)
def test_every_normaliser_in_tiles_equals_xla(normaliser, x64):
    assert_equal("alibi", mask=Mask(causal=True), normaliser=normaliser, rate=0.2)


@attention.pair
def laplace(query, key, at, *, tau=shared(1.0)):
    return -tau * jnp.abs(query - key).sum()


@pytest.mark.parametrize("normaliser", ["sigmoid", more("sink(learned=True)")])
def test_heads_may_share_a_number_under_every_normaliser(normaliser):
    score, x = laplace(normaliser=normaliser), jax.random.normal(jax.random.key(0), (2, 9, 2, 3))
    params = init(score, jax.random.key(1), 2, 3)
    found, expected = (
        outcome(lambda *given, way=way: attend(score, *given, x, x, implementation=way), params, x)
        for way in ("pallas", "xla")
    )
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("groups", [1, more(4)])
def test_keys_that_heads_share_have_the_sum_of_their_gradients(groups, x64):
    assert_equal("bilinear", groups=groups)


@pytest.mark.parametrize("name", LOOPED)
def test_what_does_not_fuse_is_named(name):
    call, arrays = case(name)
    assert LOOPED[name][2] in fused.why_not(call(*arrays))


def test_a_named_kernel_says_what_it_cannot_do():
    x = jnp.ones((1, 4, 2, 3))
    with pytest.raises(UnsupportedError, match=r"'pallas' cannot do this call: .*'sort'.*; use 'chunked' or 'auto'"):
        attend(written(*LOOPED["sorted"][:2]), {}, x, x, x, implementation="pallas")
    with pytest.raises(UnsupportedError, match="'pallas' cannot do this call: it adds no bias"):
        attend("alibi", {}, x, x, x, implementation="pallas", bias=jnp.ones((1, 1, 4, 4)))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_float64_is_for_cpus(platform, x64):
    call, arrays = case("l1")
    given = dataclasses.replace(call(*arrays), block=None)
    assert fused.why_not(given, platform) == "float64 is for CPUs"
    single = dataclasses.replace(call(*jax.tree.map(lambda x: x.astype(jnp.float32), arrays)), block=None)
    assert not fused.why_not(single, platform)


@pytest.mark.parametrize(
    ("platform", "target", "kernels"), [("cuda", "__gpu$xla.gpu.triton", 3), more("tpu", "tpu_custom_call", 2)]
)
def test_both_passes_lower_to_few_kernels(platform, target, kernels):
    name = {"cuda": "gpu", "tpu": "tpu"}[platform]
    call, arrays = case("l1", mask=Mask(causal=True), shape=(1, 256, 256))

    def loss(*arrays):
        given = dataclasses.replace(call(*arrays), block=None)
        return fused.attend(given, name)[0].sum()

    check = jax.export.DisabledSafetyCheck.custom_call(target)
    exported = jax.export.export(jax.jit(jax.grad(loss, range(4))), platforms=(platform,), disabled_checks=[check])
    assert exported(*arrays).mlir_module().count(f"@{target}(") == kernels


@pytest.mark.parametrize(
    ("tokens", "forward", "backward"),
    [
        (7, (8, 128), (8, 128)),
        (65, (128, 128), (128, 128)),
        (257, (128, 384), (384, 384)),
        (512, (256, 512), (512, 512)),
        (513, (128, 384), (384, 384)),
        (700, (256, 384), (384, 384)),
        (1024, (256, 512), (512, 512)),
    ],
)
def test_tiles_of_a_tpu_waste_little(tokens, forward, backward):
    assert tpu.block_sizes(tokens, tokens) == forward
    assert tpu.backward_sizes(tokens, tokens) == backward
