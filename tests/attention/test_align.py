"""Super Attention's W^A against its equation, and what it must and must not do."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError, align_values, reference


def inputs(length=6, built=9, per_head=False, batch=(2,), heads=3, width=4):
    keys = jax.random.split(jax.random.key(0), 3)
    lead = (heads,) if per_head else ()
    value = jax.random.normal(keys[0], (*batch, length, heads, width))
    return value, jax.random.normal(keys[1], (*lead, built, built)), jax.random.normal(keys[2], (*lead, built))


@pytest.mark.parametrize(("causal", "per_head", "length"), [(True, False, 6), (False, True, 9)])
def test_equals_the_papers_equation_on_the_leading_block(causal, per_head, length):
    value, kernel, bias = inputs(length, per_head=per_head)
    out = align_values(value, kernel, bias, mask=Mask(causal=causal))
    for b in range(2):
        for n in range(3):
            k, c = (kernel[n], bias[n]) if per_head else (kernel, bias)
            expected = reference.align_values(value[b, :, n], k[:length, :length], c[:length], causal)
            chex.assert_trees_all_close(out[b, :, n], expected, atol=1e-5)


def test_causal_by_gradient():
    value, kernel, bias = inputs()
    gradient = jax.grad(lambda v: jnp.sum(align_values(v, kernel, bias, mask=Mask(causal=True))[:, 3]))(value)
    assert np.all(np.asarray(gradient[:, 4:]) == 0)
    assert np.all(np.asarray(gradient[:, :4]) != 0)


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (12, {}, "at most 9 tokens, but this one has 12"),
        (6, {"mask": Mask(query_offset=4), "rows": 6}, "at most 9 tokens, but this one has 10"),
        (6, {"mask": Mask(key_lengths=jnp.array([4, 6, 6]))}, r"key_lengths must have the shape \(2,\), but it has"),
        (6, {"mask": Mask(window=2)}, "Super Attention.*cannot honour a mask of kind window"),
    ],
)
def test_mistakes_are_one_sentence(length, options, message):
    with pytest.raises(UsageError, match=message):
        align_values(*inputs(length), **options)
