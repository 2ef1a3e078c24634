"""What every attention function keeps to, whatever computes it: the rules of `attention.check` for all cases."""

import jax
import jax.numpy as jnp
import pytest

from attention import Mask, UnsupportedError, UsageError
from attention.check import __main__ as program
from attention.check import rules
from attention.check.subject import inputs
from attention.kernels import loops
from attention.kernels.loops import plan
from tests.attention.cases import ALL, CASES, FAST
from tests.sizes import once

ONE_OF_EACH_KERNEL = [
    *((name, which) for name in ("dot_product", "neural", "linear", "delta") for which in ("xla", "chunked")),
    *((name, "xla") for name in ("neural unique", "gaussian unsquared", "positional")),
]
# Every family in `make test`, by the implementation that is chosen for it.
KEPT = [
    *((name, "chunked") for name in ("dot_product", "neural", "additive", "gaussian", "linear", "delta")),
    *((name, "xla") for name in ("neural unique", "luong general", "positional factorised", "location")),
]
FEW = [(name, "chunked") for name in ("dot_product", "neural", "delta")] + [("positional factorised", "xla")]
ONE = FEW[:1]
WITH_WEIGHTS = [("dot_product", "reference"), ("neural unique", "xla"), ("positional factorised", "xla")]
KEPT_OF = {  # by rule, the cases that are in `make test`
    rules.equals_the_reference: KEPT,
    rules.equals_the_reference_under_other_masks: FEW,
    rules.is_causal: KEPT,
    rules.ignores_what_padding_holds: KEPT,
    rules.gives_zeros_where_nothing_is_seen: KEPT,
    rules.takes_padding_as_truncation: ONE,
    rules.depends_on_order_where_it_says: FEW,
    rules.gives_the_weights_that_it_uses: WITH_WEIGHTS,
    rules.gives_causal_weights: WITH_WEIGHTS,
    rules.is_close_in_bfloat16: ONE,
    rules.is_what_its_oracle_says: [(name,) for name in ("alibi", "cosine", "gated_delta", "retention")],
    rules.uses_every_weight_and_input: [(name,) for name in dict(KEPT)],
    rules.decodes_as_it_trains: [(name,) for name in ("alibi", "forgetting", "gated_delta")],
    rules.drops_weights: [("dot_product",)],
}

# In one process, so that nothing is traced and compiled twice.
pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]


def concerned():
    """Every rule with the cases, and forms of them, that it concerns; most are left to `make test-more`."""
    every = [(rule, (name,)) for rule in rules.OF_A_CASE for name in CASES]
    every += [(rule, pair) for rule in rules.OF_A_FORM for pair in ALL]
    every = [(rule, given) for rule, given in every if not rules.why_not(rule, CASES[given[0]], *given[1:])]
    return once(every, [(rule, given) for rule, kept in KEPT_OF.items() for given in kept if (rule, given) in every])


def named(value):
    return value.__name__ if callable(value) else "-".join(value)


@pytest.mark.parametrize(("rule", "given"), concerned(), ids=named)
def test_keeps_the_contract(rule, given):
    name, *form = given
    rule(CASES[name], *form)


@pytest.mark.parametrize(
    ("name", "implementation"), once([pair for pair in FAST if pair[1] == "chunked" and not CASES[pair[0]].fixed], ONE)
)
def test_lengths_that_are_no_multiple_of_a_block(monkeypatch, name, implementation):
    monkeypatch.setattr(loops, "rule", lambda call, score, units: plan.Tiling(64, 48))
    case, arrays, mask = CASES[name], inputs(130, 130, batch=(1,)), Mask(causal=True, key_lengths=jnp.array([101]))
    rules.close(*(case.outcome(which, arrays, case.weights(), mask) for which in (implementation, "xla")))


@pytest.mark.parametrize(("name", "implementation"), once(ONE_OF_EACH_KERNEL, ONE))
def test_vmap_and_remat_change_nothing(name, implementation):
    query, key, value = inputs(batch=(3, 2))
    case, mask = CASES[name], Mask(causal=True)
    weights = case.weights()

    def scalar(value, attend):
        return jnp.sum(jnp.sin(attend(query, key, value)))

    def attend(*arrays):
        return case.run(implementation, arrays, weights, mask)

    gradient = lambda f: jax.jit(lambda value: jax.value_and_grad(scalar)(value, f))(value)  # noqa: E731
    rules.close(gradient(jax.vmap(attend)), gradient(jax.checkpoint(attend)))


@pytest.mark.parametrize("name", once(CASES, dict(KEPT)))
def test_what_it_cannot_do_is_one_sentence(name):
    case, arrays = CASES[name], inputs()
    weights = case.weights()
    with pytest.raises(
        UsageError, match=r"Unknown attention implementation 'fast'.*Valid: auto, chunked, cudnn, pallas"
    ):
        case.run("fast", arrays, weights)
    with pytest.raises(UnsupportedError, match=r"has no implementation|cannot do this call"):
        case.run("cudnn", arrays, weights)
    if case.weighted:
        with pytest.raises(UsageError, match=r"at most 0\.999, but it is 1\.5"):
            case.run("auto", arrays, weights, dropout_rate=1.5)
        with pytest.raises(UsageError, match="needs a dropout_key"):
            case.run("auto", arrays, weights, dropout_rate=0.5)
        return
    with pytest.raises(UnsupportedError, match="has no attention dropout: it keeps a running state"):
        case.run("auto", arrays, weights, dropout_rate=0.1, dropout_key=jax.random.key(0))
    with pytest.raises(UsageError, match="honour a mask of kind window; it honours causal, key_lengths, segments"):
        case.run("auto", arrays, weights, Mask(window=2))


MINE = """
import attention, jax.numpy as jnp

@attention.pair
def right(query, key, at):
    return -jnp.abs(query - key).sum()

@attention.pair
def wrong(query, key, at):
    return query @ key * jnp.where(at.query < 6, 1.0, jnp.nan)
"""


@pytest.mark.more
def test_the_command_says_what_holds_and_what_is_broken(tmp_path, monkeypatch, capsys, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MINE)
    monkeypatch.setattr(program, "OF_A_FORM", (rules.is_causal,))
    assert program.main(["my.py:right"]) == 0
    printed = capsys.readouterr().out
    assert "holds  Under a causal mask no output has a gradient with respect to a later key" in printed
    assert "(it has no oracle" in printed
    assert program.main(["my.py:wrong"]) == 1
    assert "FAILS" in capsys.readouterr().out
    monkeypatch.setattr(program, "OF_A_FORM", (rules.equals_the_reference,))  # NaN would equal NaN
    assert program.main(["my.py:wrong"]) == 1
    assert "(xla: an output or a gradient is not finite" in capsys.readouterr().out
    assert "error: Unknown score 'alibe'. Did you mean 'alibi'" in refused(program.main, ["alibe"])
