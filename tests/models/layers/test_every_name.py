"""Every row in the examples of docs/own_model.md: it runs in Linen and in NNX, or one sentence says what to do."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask, UsageError
from attention.defining.definition import reads_source
from attention.defining.table import SCORES
from attention.parameters import Sizes
from attention.recurrences.recurrence import Recurrence
from models.layers import MultiHeadAttention
from models.mechanisms import MECHANISMS
from tests.conftest import ROOT
from tests.sizes import once

LENGTH, WIDTH, HEADS = 16, 64, 8
CAUSAL = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))
BY_PLACE = [name for name, row in MECHANISMS.items() if isinstance(row.score, Recurrence) or row.align]  # no dense mask
TABLES = ("super", "positional", "positional_factorised")  # of a length


def run(name, mask):
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, WIDTH))
    layer = MultiHeadAttention(name, heads=HEADS, length=LENGTH)
    return layer.init_with_output(jax.random.key(1), x, mask=mask)[0]


@pytest.mark.parametrize("name", once(MECHANISMS, ("neural", "super", "gated_delta", "forgetting")))
def test_an_array_is_a_mask_too_or_one_sentence_says_what_to_give(name):
    if name in (*BY_PLACE, "forgetting", "path"):
        with pytest.raises(UsageError, match=r"Mask\(causal=True\)|causal mask"):
            run(name, CAUSAL)
    else:
        np.testing.assert_allclose(run(name, CAUSAL), run(name, Mask(causal=True)), atol=1e-5)


def page(name):
    """The Linen and NNX examples, as they are printed, with another mechanism."""
    text = (ROOT / "docs/own_model.md").read_text(encoding="utf-8").partition("## Equinox")[0]
    example, length = '"neural(dim=2)", heads=8', ", length=16" if name in TABLES else ""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert [example in block for block in blocks] == [True, True]
    return "\n".join(blocks).replace(example, f'"{name}", heads=8{length}')


@pytest.mark.parametrize("name", once(MECHANISMS, ("neural", "forgetting")))
def test_the_printed_examples_run_with_it(name):
    """What follows a token changes nothing, so the mask is in force."""
    names = {}
    exec(page(name), names)
    x, mask, later = names["x"], names["causal"], names["x"].at[:, -1].add(1.0)
    for block in (functools.partial(names["layer"].apply, names["params"]), names["module"], names["block"]):
        out, changed = block(x, mask=mask), block(later, mask=mask)
        assert out.shape == x.shape
        np.testing.assert_allclose(out[:, :-1], changed[:, :-1], rtol=0, atol=1e-5)
        assert np.abs(out[:, -1] - changed[:, -1]).max() > 1e-3


def runs(function, unless):
    """Traces a function; where `unless` has a pattern, its error must be one sentence with that."""
    if not unless:
        return jax.eval_shape(function)
    with pytest.raises(UsageError, match=unless):
        jax.eval_shape(function)
    return None


@pytest.mark.parametrize("name", once(SCORES, ("location", "path", "kimi_delta")))
def test_a_score_by_name_takes_every_call_or_says_what_to_give(name):
    query, key, value = jnp.zeros((3, 2, LENGTH, 4, 8))
    score, source = SCORES[name].score, jnp.zeros((2, LENGTH, 32))
    declared, causal = score.arrays(Sizes(32, 4, 8, LENGTH)), Mask(causal=True)

    def call(mask=causal, made=True, length=LENGTH, **given):
        def compute():
            params = attention.init(name, jax.random.key(0), heads=4, head=8, length=length) if made else {}
            return attention.attend(name, params, query, key, value, mask=mask, **given)

        return compute

    by_place = isinstance(score, Recurrence) or score.traits.causal
    assert runs(call(source=source), "").shape == value.shape
    runs(call(CAUSAL, source=source), r"write attention\.Mask\(causal=True\)" if by_place else "")
    runs(call(), r"give them as source, an array \(\*B, S, D\) with D as model=" if reads_source(score) else "")
    runs(call(source=source, made=False), r"needs the arrays .*; attention\.init makes them" if declared else "")
    table = name in ("location", "positional", "positional_factorised")
    runs(call(source=source, length=0), "give init the length of the longest sequence" if table else "")
