"""Exact parameter counts of DiGiugno's models, and of each row of the table."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from attention.parameters import Sizes
from models.mechanisms import MECHANISMS, resolve
from tests.sizes import more
from train import loading
from train.mechanisms import cache_bytes, layer_parameters, main
from train.state import count_parameters, first_attention

LANGUAGE, IMAGES = (28_996, 1024), ((224, 224, 3), 100)


@pytest.mark.parametrize(
    ("file", "sizes", "attention", "count"),
    [
        ("gpt_wikitext103", LANGUAGE, "dot_product", 46_527_812),
        ("gpt_wikitext103", LANGUAGE, "neural|dot_product", 46_528_087),
        more("gpt_wikitext103", LANGUAGE, "neural(dim=16)|dot_product", 46_530_565),
        more("gpt_wikitext103", LANGUAGE, "neural(dim=None)|dot_product", 46_538_181),
        more("vit_cifar_neural", IMAGES, "dot_product", 47_471_716),
        more("vit_cifar_neural", (IMAGES[0], 10), "neural(dim=3)|dot_product", 47_403_115),
        ("vit_cifar_neural", IMAGES, "neural(dim=3)|dot_product", 47_472_325),
    ],
)
def test_models_of_digiugno(file, sizes, attention, count):
    config = dataclasses.replace(loading.resolve(f"configs/{file}.py", {})[0].model, attention=attention)
    inputs = jnp.zeros((1, 1024), int) if sizes == LANGUAGE else jnp.zeros((1, *sizes[0]))
    assert count_parameters(jax.eval_shape(config.build(*sizes).init, jax.random.key(0), inputs)) == count


D, N, L = 12, 3, 5
H = D // N
LINEAR = D * D + D
MLP = D * 2 * D + 2 * D + 2 * D * D + D
NORM = 4 * D
PLAIN = ("dot_product", "luong_dot", "sigmoid", "hard", "soft_cap", "alibi", "stick_breaking", "moba", "linear")
COUNTS = dict.fromkeys(PLAIN, 4 * LINEAR) | {
    "optimised": 3 * LINEAR,
    "efficient": 2 * LINEAR,
    "super": 2 * LINEAR + L * L + L,
    "mlp_qkv": 3 * (MLP + NORM) + LINEAR,
    "mlp_kv": 2 * (MLP + NORM) + 2 * LINEAR,
    "dual_linear": 2 * (MLP + NORM) + 2 * LINEAR,
    "mlp_marian": 3 * (MLP + NORM) + LINEAR,
    "mlp_roberta": 3 * MLP + LINEAR,
    "neural": 4 * LINEAR + 2 * (2 * H + 2) + (4 * 2 + 2) + (2 + 1) + (1 + 1),
    "additive": 4 * LINEAR + 2 * H * H + H + H,
    "luong_general": 4 * LINEAR + H * H,
    "luong_concat": 4 * LINEAR + 2 * H * H + H + H,
    "decomposable": MLP + 2 * LINEAR,
    "gaussian": 3 * LINEAR,
    "positional": 2 * LINEAR + N * L * L,
    "positional_factorised": 2 * LINEAR + 2 * N * L * 8,
    "gated": 5 * LINEAR,
    "sink": 4 * LINEAR + N,
    "cosine": 4 * LINEAR + N,
    "relative": 4 * LINEAR + 32 * N,
    "forgetting": 4 * LINEAR + D * N + N,
    "path": 4 * LINEAR + 32 * (D + D) + 3 * D + D * N + N,
    "native_sparse": 4 * LINEAR + 3 * D * N + 2 * (64 * H + 64 * H * H + H + H * H),
    "deepseek_sparse": 4 * LINEAR + D * 4 * 32 + D * 32 + 2 * 32 + D * 4,
    "differential": 4 * LINEAR + 2 * 2 * (H // 2) + H,
    "delta": 4 * LINEAR + D * N + N,
    "retention": 4 * LINEAR + N,
    "gated_linear": 4 * LINEAR + 2 * 16 * D + D,
    "gated_delta": 4 * LINEAR + 2 * D * N + 2 * N,
    "state_space": 4 * LINEAR + D * N + 2 * N,
    "kimi_delta": 4 * LINEAR + D * H + H * D + D + D * N + N,
}


def count_of(spec):
    """What the paper says, or else what the row and its score declare."""
    row = MECHANISMS[spec]
    if spec in COUNTS:
        return COUNTS[spec]
    assert {row.query, row.key, row.value, row.out} == {"linear"}, f"Add the parameters of {spec} to COUNTS."
    return 4 * LINEAR + sum(math.prod(p.shape) for p in row.score.arrays(Sizes(D, N, H, L)).values())


@pytest.mark.parametrize("spec", MECHANISMS)
def test_parameters_of_every_row(spec):
    assert layer_parameters(resolve(spec, 1)[0], D, N, L) == count_of(spec)


@pytest.mark.parametrize(
    ("spec", "token", "sequence"),
    [
        ("dot_product", 2 * D, 0),
        ("dot_product(kv_heads=1)", 2 * H, 0),
        ("dot_product(latent=7, rotary=2)", 7 + 2, 0),
        ("efficient", D, 0),
        ("neural(dim=2)", 2 * N + D, 0),
        ("forgetting", 2 * D + 2 * N, 0),
        ("path(rank=3)", 2 * D + 3 + N, 0),
        ("deepseek_sparse(width=5)", 2 * D + 5, 0),
        ("linear(align=True)", 1 * D, 2 * N * H * (H + 1)),
        ("super(key='linear')", 3 * D, 0),
        ("positional", D, 0),
    ],
)
def test_numbers_in_a_cache(spec, token, sequence):
    """In bfloat16, of two bytes; states and running sums are in float32."""
    assert cache_bytes(spec, D, N) == (2 * token, 2 * sequence)


def test_the_command_prints_the_rows_that_are_asked_for(capsys):
    assert main(["--width=32", "--heads=4", "--length=8", "super", "neural(dim=4)"]) == 0
    lines = {}
    for line in filter(None, capsys.readouterr().out.splitlines()):
        lines.setdefault(line.split()[0], []).extend(line.split())
    assert "2,184" in lines["super"]  # 2 (32² + 32) + 8² + 8
    assert "4,345" in lines["neural(dim=4)"]  # 4 (32² + 32) + 2 (8·4 + 4) + (8·4 + 4) + (4·2 + 2) + (2 + 1)
    assert lines["super"][-2:] == ["128", "0"]  # keys, and aligned values, of 32 numbers in bfloat16
    assert "dot_product" not in lines


A, B, C = ({"kernel": size} for size in (1, 2, 3))


def test_the_first_attention_layer_is_found():
    assert first_attention({"block_10": {"attention": B}, "block_2": {"attention": A}, "head": C}) == A
    assert first_attention({"embed": {"block_0": {"attention": C}}, "encoder_0": {"attention": A}}) == A
    assert first_attention({"embed": B, "head": C}) == {}
