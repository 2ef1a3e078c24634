"""What a full state forgets: sums spread their errors over all pairs, and a delta rule keeps the newest pairs."""

import chex
import jax
import jax.numpy as jnp

import attention

WIDTH, PAIRS, VALUES, BATCH = 64, 128, 64, 32


def recalled(spec, params, **options):
    """Computes the share of values that are recalled right, for each quarter of the pairs from the first on."""
    keys, codes, chosen = jax.random.split(jax.random.key(0), 3)
    key = jax.random.normal(keys, (BATCH, PAIRS, 1, WIDTH))
    code = jax.random.normal(codes, (VALUES, WIDTH))
    value = jax.random.randint(chosen, (BATCH, PAIRS), 0, VALUES)
    out = attention.attend(spec, params, key, key, code[value][:, :, None], **options)[:, :, 0]
    return (jnp.argmax(out @ code.T, -1) == value).reshape(BATCH, 4, -1).mean((0, 2))


def test_a_delta_rule_forgets_the_earliest_of_more_pairs_than_units_and_a_sum_forgets_evenly():
    even = recalled("linear(normalise=False, feature='identity')", {})
    whole = {"strength_kernel": jnp.zeros((WIDTH, 1)), "strength_bias": jnp.full(1, 50.0)}  # β = 1
    newest = recalled("delta", whole, source=jnp.zeros((BATCH, PAIRS, WIDTH)))
    chex.assert_trees_all_close(even, jnp.full(4, even.mean()), atol=0.05)
    assert jnp.all(jnp.diff(newest) > 0.1)
    assert newest[0] < 0.3 < 0.8 < newest[-1]
    assert even.mean() > newest.mean() + 0.2
