"""Tables of the families of mechanisms: the projections of each mechanism, and the costs of its layers."""

import functools
import re
from pathlib import Path

from analysis.tables import plain_markdown
from models.mechanisms import ALIASES, MECHANISMS
from train.mechanisms import cache_bytes, layer_parameters, projections

PAGE = Path(__file__).parent / "mechanisms.md"
ROW = re.compile(r"^\| \[[^]]+\]\(mechanisms/(\w+)\.md\)[^|]*\|([^|]+)\|", re.MULTILINE)
WIDTH, HEADS, LENGTH = 512, 8, 1024


@functools.cache
def families() -> dict[str, list[str]]:
    """Reads the page of each family, with the names of its mechanisms, from the first table of `docs/mechanisms.md`."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {page: [name for name in re.findall(r"`(\w+)`", names) if name not in ALIASES] for page, names in rows}


def table(family: str) -> str:
    """Writes a row for each mechanism of a family, in Markdown."""
    return plain_markdown(
        ("name", "query, key, value, out", "parameters", "MFLOP", "decode cache, bytes", "source"),
        map(_row, families()[family]),
    )


def _row(name: str) -> tuple[str, ...]:
    mechanism = MECHANISMS[name]
    token, sequence = cache_bytes(name, WIDTH, HEADS)
    return (
        f"`{name}`",
        projections(mechanism),
        f"{layer_parameters(mechanism, WIDTH, HEADS, LENGTH):,}",
        f"{mechanism.cost(LENGTH, WIDTH, HEADS).flops / 1e6:,.0f}",
        f"{token:,} a token" if token else f"{sequence:,} in all",
        mechanism.source,
    )
