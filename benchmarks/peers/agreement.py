"""Compare every mechanism in every form, outputs and gradients, with its definition in float64.

    python -m benchmarks.peers.agreement --out=benchmarks/results/agreement_cpu.json
    python -m benchmarks.peers.agreement --only neural gated_delta --out=benchmarks/results/agreement_cpu.json

The forms are our implementations; `steps`, which takes token after token with a cache or a state; and `published`, the
plain form of published code, which is given our gates and needs requirements-bench.txt. Errors are relative to root
mean squares. With `--only`, the other rows of the file stay.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import check_known
from attention.forms import Tokens
from attention.mask import Mask
from attention.options import Options
from attention.recurrences.recurrence import Recurrence
from benchmarks import measure
from benchmarks.attention import SPECS, distinct
from benchmarks.device import right
from benchmarks.device.right import Check
from models.files import read_json
from train import cli
from train.run import workdir

LENGTH = 72  # tokens, more than a chunk or a tile
DTYPES = ("float32", "bfloat16")
STEPS, PUBLISHED = "steps", "published"
FORMS = ("reference", "xla", "chunked", "pallas", STEPS, PUBLISHED)
NEEDED = {"torch": "torch", "fla": "flash-linear-attention", "transformers": "transformers"}  # packages, by module
ROWS = distinct(SPECS)

Arrays = dict[str, Any]


@measurements.program(__doc__, cli.flag("--only", nargs="+", default=ROWS, metavar="NAME", help="mechanisms"))
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the errors of all mechanisms so far, and tables at the end."""
    for spec in flags.only:
        check_known("mechanism", spec, ROWS)
    known = read_json(flags.out)["rows"] if flags.out and flags.out.exists() and len(flags.only) < len(ROWS) else {}
    about = measure.with_versions(NEEDED.values(), "requirements-bench.txt") if with_peers() else {}
    about, commit = about | {"length": LENGTH}, workdir.environment()["git"]
    for spec in flags.only:
        known[spec] = measured(spec) | {"commit": commit}
        rows = {name: known[name] for name in ROWS if name in known}
        yield about | {"rows": rows}, f"{spec} is measured."
    yield about | {"rows": rows}, "\n\n".join(table(rows, dtype) for dtype in DTYPES)


def measured(spec: str) -> dict[str, dict[str, Any]]:
    """Measures a mechanism's forms in each dtype: the errors of the output and of the worst gradient."""
    return {dtype: of_forms(check_of(spec, dtype)) for dtype in DTYPES}


def with_peers() -> bool:
    """Tells whether the packages of published code are installed."""
    return all(map(importlib.util.find_spec, NEEDED))


def check_of(spec: str, dtype: str) -> Check:
    """Makes the call for all forms."""
    return Check(spec, "reference", dtype, LENGTH, "causal", False, False)


def definition(check: Check, given: tuple[Any, ...]) -> Arrays:
    """Computes the definition in float64."""
    with jax.enable_x64(True):
        return right.flat(jax.jit(right.program(check, "reference", "float64"))(*given))


def of_forms(check: Check) -> dict[str, Any]:
    """Measures the errors of all forms."""
    given, score = right.arguments(check), check.mechanism.score
    wanted = definition(check, given)
    forms = {name: right.program(check, name, check.dtype) for name in score.implementations if name in FORMS}
    if check.mechanism.align is None:
        forms[STEPS] = right.program(check, STEPS, check.dtype, attend=by_steps)
    found = {name: right.flat(jax.jit(program)(*given)) for name, program in forms.items()}
    if check.dtype == "float32" and with_peers():
        found |= published(check, given)
    return {name: apart(check, arrays, wanted) for name, arrays in found.items()}


def apart(check: Check, found: Arrays, wanted: Arrays) -> dict[str, Any]:
    """Measures the errors of the output and of the available gradients; None if not finite."""
    parts = {"output": ["['out']"], "gradients": [name for name in found if name != "['out']"]}

    def error(names: list[str]) -> float | None:
        return right.errors(check, *({name: arrays[name] for name in names} for arrays in (found, wanted)))["error"]

    return {part: error(names) for part, names in parts.items()}


def by_steps(
    score: Any, weights: Arrays, query: jax.Array, key: Any, value: Any, *, source: jax.Array | None, **_: Any
) -> jax.Array:
    """Computes causal attention token after token, from the prepared keys or the state of earlier tokens."""
    arrays = query, key, value, source
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[:, :, None], arrays)  # (T, B, 1, …)
    if isinstance(score, Recurrence):
        return _in_turn(lambda token, at, state: _advanced(score, weights, token, at, state), tokens)

    def prepared(token: Any, at: Any, before: Any) -> tuple[Any, Any]:
        key = score.prepare_key(weights, token[1], _tokens(token, at, before))
        return key, key

    keys = _in_turn(prepared, tokens) if score.traits.reads_key else None

    def attended(token: Any, at: Any, _: Any) -> tuple[jax.Array, None]:
        query = score.prepare_query(weights, token[0], _tokens(token, at, None))
        options = Options(Mask(causal=True, query_offset=at), implementation="auto")
        return score.attend(weights, query, keys, keys if value is None else value, options), None

    return _in_turn(attended, tokens)


def _advanced(score: Recurrence, weights: Arrays, token: Any, at: Any, state: Any) -> tuple[jax.Array, Any]:
    query, key, value, _ = token
    here = _tokens(token, at, None)
    query, key = score.prepare_query(weights, query, here), score.prepare_key(weights, key, here)
    return score.advance(weights, query, key, value, state, Mask(causal=True, query_offset=at))


def _tokens(token: Any, at: Any, before: Any) -> Tokens:
    return Tokens(at, token[0] if token[3] is None else token[3], before=before)


def _in_turn(step: Callable[[Any, Any, Any], tuple[Any, Any]], tokens: Any) -> Any:
    """Takes a step for each token, with its position and what the last step left; joins outputs `(B, 1, …)`."""
    first, left = step(jax.tree.map(lambda x: x[0], tokens), 0, None)
    rest = jax.tree.map(lambda x: x[1:], tokens)
    _, found = jax.lax.scan(lambda left, x: step(x[0], x[1], left)[::-1], left, (rest, jnp.arange(1, LENGTH)))
    later = jax.tree.map(lambda x: jnp.moveaxis(x[:, :, 0], 0, 1), found)
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), first, later)


def published(check: Check, given: tuple[Any, ...]) -> dict[str, Arrays]:
    """Computes the published plain form, if there is one, with gradients by query, key and value."""
    from benchmarks.peers import published as peers  # torch and fla start slowly, and are not always there

    if check.spec not in peers.PUBLISHED:
        return {}
    weights, query, key, value, source, direction, _ = given
    score = check.mechanism.score
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (weights["score"], query, key, source))
        arrays, *inputs, inner = exact
        at = Tokens(0, inner)
        prepared = score.prepare_query(arrays, inputs[0], at), score.prepare_key(arrays, inputs[1], at)
    gates = [part for x in prepared if isinstance(x, tuple) for part in x[1:]]
    found = peers.outcome(check.spec, score, (query, key, value), weights["score"], gates, direction)
    return {PUBLISHED: {f"['{name}']": x for name, x in found.items()}}


def table(rows: dict[str, Any], dtype: str) -> str:
    """Tabulates errors in a dtype, `output / gradients`; those beyond the limit are bold, and '–' is no such form."""
    forms = [form for form in FORMS if any(form in row[dtype] for row in rows.values())]
    lines = [(f"`{spec}`", *(_cell(row[dtype], form, dtype) for form in forms)) for spec, row in rows.items()]
    return plain_markdown((f"in {dtype}", *forms), lines)


def is_apart(row: dict[str, Any], form: str, dtype: str) -> bool:
    """Tells whether a form's errors exceed the limit, which is at least twice plain XLA's error."""
    limits = {part: max(right.LIMITS[dtype], right.TIMES_PLAIN * (x or 0)) for part, x in row["xla"].items()}
    return any(x is None or x > limits[part] for part, x in row[form].items())


def _cell(row: dict[str, Any], form: str, dtype: str) -> str:
    if form not in row:
        return "–"
    written = " / ".join(f"{math.nan if x is None else x:.0e}".replace("e-0", "e-") for x in row[form].values())
    return f"**{written}**" if is_apart(row, form, dtype) else written


if __name__ == "__main__":
    sys.exit(main())
