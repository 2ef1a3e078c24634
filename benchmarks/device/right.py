"""Correctness: outputs and gradients of every mechanism in every implementation, against the definition in float64.

The checks sample all combinations: every mechanism in every implementation and, for each kind of implementation, every
length, mask, dtype, grouping and dropout, preferring pairs of these that were tried least. Lengths, segments and dense
masks include rows that see nothing. Inputs are rounded to the dtype before the definition is computed, so only
arithmetic differs. What the forms by XLA lose on the host's CPU raises the limit: digits in bfloat16, and, where a
unit near 0 falls on the other side of a ReLU's kink, gradients.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention.recurrences.recurrence import Recurrence
from benchmarks import measure
from benchmarks.attention import SPECS, distinct, mechanism_of
from benchmarks.device import about
from benchmarks.device.items import Item, Row
from models.mechanisms import Mechanism

LENGTHS = (1, 7, 64, 65, 130, 192, 1024)
TINY = (1, 7, 12)
MASKS = ("full", "causal", "lengths", "causal lengths", "segments", "causal window", "dense", "causal segments")
OF_STATES = MASKS[:4]  # the masks that recurrences and alignments support
BATCH, HEADS, WIDTH, RATE = 3, 4, 64, 0.2
TIMES = {"cudnn": 3, "pallas": 3, "fused": 2}  # checks per mechanism in hand-written kernels
DEAR = ("neural(dim=16)", "neural(dim=None)")  # compile for a minute
NETWORKS = (*DEAR, "neural", "additive")
WIDE = (*DEAR, "additive")  # definitions with many numbers per pair, for which 1,024 tokens would not fit
LIMITS = {"float32": 2e-5, "bfloat16": 3e-2}  # errors relative to the root mean square of an output or gradient
TIMES_PLAIN, MOST_PLAIN = 2.0, 0.2  # this multiple of the plain form's error is allowed too, up to this error
# Some gradients are small because their terms cancel, such as that of a bias of all scores, which is 0. Their errors
# are relative to this share of the largest gradient of the same kind, if that is more.
SHARE = {"float32": 0.02, "bfloat16": 0.3}
OF_ONE = ("['out']", "['value']")  # arrays worth checking with one token, whose weight is 1 whatever its score
PLAIN, FAILED = "plain", "failed"  # keys in a check's file: the plain form's error, and the reason of a failure
PATIENCE = 150.0  # seconds to wait for the definition, fewer than the process's patience


@dataclasses.dataclass(frozen=True)
class Check:
    """A mechanism in an implementation, with the options of its call.

    Attributes:
      spec: A spec string.
      implementation: The implementation.
      dtype: The dtype of queries, keys and values.
      length: T, of queries and keys.
      mask: One of `MASKS`.
      grouped: Whether two query heads share a key head.
      dropped: Whether weights are dropped.
    """

    spec: str
    implementation: str
    dtype: str
    length: int
    mask: str
    grouped: bool
    dropped: bool

    @property
    def name(self) -> str:
        """The name of its item."""
        more = [f"{self.length} tokens", self.mask, *["grouped"] * self.grouped, *["dropout"] * self.dropped]
        return ", ".join(["right", self.spec, self.implementation, self.dtype, *more])

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism."""
        return mechanism_of(self.spec)

    @property
    def kind(self) -> str:
        """The kind of implementation."""
        return "recurrence" if isinstance(self.mechanism.score, Recurrence) else _kind(self.spec, self.implementation)


# Dense masks with T mod 128 = 64, for which cuDNN gave NaN (pytorch#196678).
SPELT = [Check("dot_product", "cudnn", "bfloat16", length, "dense", False, False) for length in (64, 192)]


@functools.cache
def checks(tiny: bool = False) -> tuple[Check, ...]:
    """Lists the checks, those that compile for long last."""
    tried: collections.Counter[Any] = collections.Counter()
    chosen = [*([] if tiny else SPELT), *(_newest(list(_choices(*one, tiny)), tried) for one in _cores(tiny))]
    return tuple(sorted(dict.fromkeys(chosen), key=lambda check: check.spec in DEAR))


def _cores(tiny: bool) -> Iterator[tuple[str, str, str]]:
    """Yields the spec, implementation and dtype of each check; mechanisms with the same core count once.

    At toy sizes, which are for CPUs, each is checked once, since Pallas kernels are interpreted there.
    """
    for spec in distinct(SPECS):
        for implementation in mechanism_of(spec).score.implementations:
            if implementation != "reference":
                kind = _kind(spec, implementation)
                times = 1 if tiny or spec in DEAR else TIMES.get(kind, 1)
                for dtype in _dtypes(kind, SPECS.index(spec), tiny):
                    yield from [(spec, implementation, dtype)] * times


def _kind(spec: str, implementation: str) -> str:
    """Names the kind of implementation: Pallas kernels are `pallas` for MLPs on pairs, and `fused` for all others."""
    return "fused" if implementation == "pallas" and spec not in NETWORKS else implementation


def _dtypes(kind: str, number: int, tiny: bool) -> tuple[str, ...]:
    if kind == "cudnn":
        return ("bfloat16",)
    both = ("float32", "bfloat16")
    one = tiny or kind in ("xla", "fused")  # XLA's own products need less checking, and many scores share a kernel
    return (both[number % 2],) if one else both


def _choices(spec: str, implementation: str, dtype: str, tiny: bool) -> Iterator[Check]:
    """Yields the calls that this implementation of the mechanism supports."""
    mechanism = mechanism_of(spec)
    score, by_position = mechanism.score, isinstance(mechanism.score, Recurrence) or mechanism.align is not None
    masks = [m for m in (OF_STATES if by_position else MASKS) if "causal" in m or score.traits.cross]
    if implementation == "pallas":  # its kernels for GPUs take no dense mask
        masks = [mask for mask in masks if mask != "dense"]
    lengths = TINY if tiny else [n for n in LENGTHS if n < 1024 or spec not in WIDE]
    if implementation == "cudnn":  # it has no dropout and needs even lengths
        lengths = [2 * math.ceil(n / 2) for n in lengths]
    can_drop = not (isinstance(score, Recurrence) or implementation == "cudnn")
    can_group = score.traits.reads_key and not isinstance(score, Recurrence)
    for length, mask, grouped, dropped in itertools.product(lengths[::-1], masks, (False, True), (False, True)):
        if (can_group or not grouped) and (can_drop or not dropped):
            yield Check(spec, implementation, dtype, length, mask, grouped, dropped)


def _newest(choices: list[Check], tried: collections.Counter[Any]) -> Check:
    """Chooses the call whose pairs of factors were tried least with this kind of implementation, and counts them."""
    best = max(choices, key=lambda check: math.fsum(0.1 ** tried[pair] for pair in pairs(check)))
    tried.update(pairs(best))
    return best


def pairs(check: Check) -> list[Any]:
    """Lists the pairs of factors that a check covers, for its kind of implementation."""
    factors = (check.dtype, check.length, check.mask, f"grouped {check.grouped}", f"dropped {check.dropped}")
    return [(check.kind, *pair) for pair in itertools.combinations(factors, 2)]


def items(tiny: bool) -> list[Item]:
    """Lists the items."""
    oracle = Oracle(tiny)
    return [Item(check.name, "right", "jax", functools.partial(prepare, check, oracle)) for check in checks(tiny)]


def prepare(check: Check, oracle: "Oracle") -> Callable[[], Row]:
    """Compiles a check, and makes a function that runs it and compares it with the definition."""
    given = arguments(check)
    lowered = jax.jit(program(check, check.implementation, check.dtype)).lower(*given)
    oracle.ask(check)  # only if the call is not refused
    compiled = lowered.compile()

    def measured() -> dict[str, Any]:
        found = flat(compiled(*given))
        wanted = oracle.read(check)
        plain = float(wanted.pop(PLAIN))
        limit = max(LIMITS[check.dtype], min(TIMES_PLAIN * plain, MOST_PLAIN))
        sources = "pallas" if check.kind == "fused" else check.kind
        return errors(check, found, wanted) | {"limit": limit} | about.made_by(sources)

    return measured


def arguments(check: Check) -> tuple[Any, ...]:
    """Draws weights, query, key, value, source, the output's gradient, and the mask, the same on every machine."""
    draw = np.random.default_rng(zlib.crc32(check.name.encode()))
    heads = HEADS // 2 if check.grouped else HEADS
    shapes = [(BATCH, check.length, n, WIDTH) for n in (HEADS, heads, heads, HEADS)]
    query, key, value, weigh = (draw.standard_normal(shape) for shape in shapes)
    source = draw.standard_normal((BATCH, check.length, HEADS * WIDTH))

    def rounded(x: Any) -> np.ndarray:
        return np.asarray(x, np.float32).astype(check.dtype).astype(np.float32)

    weights = jax.tree.map(lambda x: rounded(x + 0.1 * draw.standard_normal(x.shape)), _initial(check))
    return weights, *map(rounded, (query, key, value, source, weigh)), _mask(check, draw)


def _initial(check: Check) -> dict[str, Any]:
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        arrays = attention.init(check.mechanism.score, jax.random.key(1), HEADS, WIDTH, length=check.length)
    align = (np.eye(check.length), np.zeros(check.length)) if check.mechanism.align else ()
    return {"score": jax.device_get(arrays), "align": align}


def _mask(check: Check, draw: np.random.Generator) -> attention.Mask:
    """Makes the mask; one sequence of three, some segments and some rows have no key to see."""
    parts: dict[str, Any] = {"causal": "causal" in check.mask, "window": 5 * ("window" in check.mask)}
    length = check.length
    if "lengths" in check.mask:
        parts["key_lengths"] = np.array([length, math.ceil(length / 2), 0], np.int32)
    if "segments" in check.mask:
        keys = np.sort(draw.integers(0, 3, (BATCH, length)), -1).astype(np.int32)
        parts |= {"query_segments": np.where(draw.random(keys.shape) < 0.1, 9, keys).astype(np.int32)}
        parts |= {"key_segments": keys}
    if "dense" in check.mask:
        seen = draw.random((BATCH, 1, length, length)) < 0.7
        parts["dense"] = seen & (draw.random((BATCH, 1, length, 1)) < 0.9)
    return attention.Mask(**jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, parts))


def program(
    check: Check, implementation: str, dtype: str, attend: Callable[..., Any] = attention.attend
) -> Callable[..., Any]:
    """Makes the function of `arguments` that gives the output and the gradients of its weighted sum.

    `attend` may be another way to compute what `attention.attend` does.
    """
    mechanism = check.mechanism
    score = mechanism.score
    options = {"implementation": implementation}
    if check.dropped or score.weighing.random:
        options |= {"dropout_rate": RATE * check.dropped, "dropout_key": jax.random.key(5)}

    def output(weights, query, key, value, source, mask):
        if mechanism.align is not None:
            value = attention.align_values(value, *weights["align"], mask=mask)
        key, value = key if score.traits.reads_key else None, None if mechanism.value == "tied" else value
        return attend(score, weights["score"], query, key, value, source=source, mask=mask, **options)

    def both(weights, query, key, value, source, weigh, mask):
        source = source if score.traits.reads_key else None
        arrays = jax.tree.map(lambda x: jnp.asarray(x, dtype), (query, key, value, source))
        kept = jnp.promote_types(dtype, jnp.float32)  # as layers keep weights
        given = jax.tree.map(lambda x: jnp.asarray(x, kept), weights), *arrays
        out, pull = jax.vjp(lambda *inputs: output(*inputs, mask), *given)
        names = ("weights", "query", "key", "value", "source")
        return {"out": out, **dict(zip(names, pull(jnp.asarray(weigh, out.dtype)), strict=True))}

    def precise(*inputs):
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            return both(*inputs)

    return precise


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Names the arrays of a tree by their paths."""
    return {jax.tree_util.keystr(path): np.asarray(x, np.float64) for path, x in jax.tree.leaves_with_path(tree)}


def errors(check: Check, found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> Row:
    """Measures how far arrays are from the wanted ones, relative to their root mean squares, and names the worst.

    The error is None if an array is not finite.
    """
    kinds = {name: name.startswith("['weights']") + 2 * (name == "['out']") for name in wanted}
    largest = {kind: max(size(wanted[name]) for name in wanted if kinds[name] == kind) for kind in set(kinds.values())}
    least = {name: SHARE[check.dtype] * largest[kind] for name, kind in kinds.items()}
    apart = {
        name: size(x - wanted[name]) / (max(size(wanted[name]), least[name]) or 1.0)
        for name, x in found.items()
        if check.length > 1 or name in OF_ONE or not np.isfinite(x).all()
    }
    worst = max(apart, key=lambda name: apart[name] if math.isfinite(apart[name]) else math.inf)
    return {"error": apart[worst] if math.isfinite(apart[worst]) else None, "worst": worst}


def size(x: np.ndarray) -> float:
    """Computes the root mean square; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def is_wrong(row: Row) -> bool:
    """Tells whether a row's error exceeds its limit or is not finite."""
    return "error" in row and (row["error"] is None or row["error"] > row["limit"])


class Oracle:
    """The definition in float64, computed on the host's CPU by a separate process."""

    def __init__(self, tiny: bool):
        self.tiny, self.lock = tiny, threading.Lock()

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of the arrays, created at first use."""
        return Path(tempfile.mkdtemp(prefix="oracle-"))

    @functools.cached_property
    def process(self) -> subprocess.Popen:
        """The process, started at first use."""
        plain = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        plain |= {} if self.tiny else {"JAX_ENABLE_COMPILATION_CACHE": "0"}  # the cache is for the device's programs
        command = [sys.executable, "-m", "benchmarks.device.oracle", str(self.folder), *["--tiny"] * self.tiny]
        pipe = {"stdin": subprocess.PIPE, "stdout": sys.stderr, "text": True}
        return subprocess.Popen(command, cwd=measure.ROOT, env=os.environ | plain, **pipe)

    def ask(self, check: Check) -> None:
        """Asks for a check's arrays."""
        with self.lock, contextlib.suppress(BrokenPipeError):  # `read` reports that the process has ended
            self.process.stdin.write(f"{check.name}\n")
            self.process.stdin.flush()

    def read(self, check: Check) -> dict[str, np.ndarray]:
        """Waits for a check's arrays and reads them; raises a RuntimeError if they do not come."""
        path, deadline = self.folder / file_of(check), time.monotonic() + PATIENCE
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the definition in float64 has not come; the log says why")
            time.sleep(0.05)
        with np.load(path) as file:
            arrays = dict(file)
        if FAILED in arrays:
            raise RuntimeError(f"the definition in float64: {arrays[FAILED]}")
        return arrays


def file_of(check: Check) -> str:
    """Names the file of a check's arrays."""
    return f"{zlib.crc32(check.name.encode()):08x}.npz"
