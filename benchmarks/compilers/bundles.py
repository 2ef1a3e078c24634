"""The final schedule of a TPU kernel, as libtpu dumps it: bundles, slots and spills, by region and how often it runs.

A bundle is one instruction word, and takes a cycle if nothing stalls. A kernel over a grid is one loop. Its body is cut
at every forward branch and at every label where such a branch ends; loops in it are regions of their own.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

SLOTS = ("MXU", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "FILL", "VSTORE", "SPILL", "SALU")
EXPONENTIALS, SPILLS = SLOTS.index("EUP"), SLOTS.index("SPILL")
LINE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:(LH|LB|LE|PB|PF|CT):?)?[\s:>]*\{(.*)")


@dataclasses.dataclass(frozen=True)
class Region:
    """Bundles that run equally often.

    Attributes:
      kind: `once` (outside the grid's loop), `step` (of the grid), `branch` (may be skipped) or `loop` (within a step).
      bundles: Number of bundles.
      slots: Uses of each of `SLOTS`.
    """

    kind: str
    bundles: int
    slots: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Trips:
    """How often regions run: per call, for one sequence and head.

    Attributes:
      steps: Steps of the grid.
      rows: Tiles of the grid's outer axis.
      visible: Tiles that some mask lets through.
      whole: Tiles in which all pairs are allowed, if the kernel has a loop for them and another for the rest.
      loop: Trips of an inner loop with exponentials in a tile.
      strips: Trips of other inner loops.
    """

    steps: int
    rows: int
    visible: int
    whole: int
    loop: int = 1
    strips: int = 1

    def of(self, regions: list[Region]) -> list[int]:
        """Counts how often each region runs.

        A region with exponentials that is a loop or has products visits pairs. If there is one, it runs for all visible
        tiles; if there are two, the first runs for those that are whole. Others with products run for each visible
        tile. Others that a branch may skip are taken for the beginning and the end of a row of tiles.
        """
        times = {"once": 0, "step": self.steps, "branch": self.rows, "loop": self.rows * self.strips}
        counts = [self.visible if region.slots[0] else times[region.kind] for region in regions]
        pairs = [
            index
            for index, region in enumerate(regions)
            if region.slots[EXPONENTIALS] and (region.kind == "loop" or region.slots[0])
        ]
        tiles = [self.visible] if len(pairs) == 1 else [self.whole, self.visible - self.whole]
        for index, often in zip(pairs, tiles, strict=False):
            counts[index] = often * (self.loop if regions[index].kind == "loop" else 1)
        return counts


def read(folder: Path) -> Iterator[tuple[str, list[Region]]]:
    """Yields the name and the regions of each kernel with a grid that was dumped into a folder."""
    for file in sorted(folder.glob("*-final_bundles.txt")):
        if "schedule-analysis" not in file.name and re.search("kernel|flash|splash", file.name):
            stem = re.sub(r"-\d+-final_bundles.txt$", "", file.name)
            used = next(x for x in folder.iterdir() if x.name.startswith(stem) and "final_hlo-static" in x.name)
            yield stem.split("-", 1)[1], regions(file.read_text(), used.read_text())


def regions(schedule: str, used: str) -> list[Region]:
    """Reads the regions of a dumped schedule, in order, with the slots of the dump beside it."""
    slots = [tuple(map(int, line.split())) for line in re.findall(r"^\d+(?: \d+)+$", used, re.MULTILINE)]
    kinds = list(_kinds(schedule))
    if len(kinds) > len(slots):
        slots += [(0,) * len(SLOTS)] * (len(kinds) - len(slots))
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for kind, numbers in zip(kinds, slots, strict=False):
        found.setdefault(kind, []).append(numbers)
    return [Region(kind, len(x), tuple(map(sum, zip(*x, strict=True)))) for (kind, _), x in found.items()]


def _kinds(schedule: str) -> Iterator[tuple[str, int]]:
    """Yields the kind and the number of the region of each bundle.

    The branch at the end of a loop is negated. Some branches forward are too, but not in inner loops, and the last one
    of all is that of the grid.
    """
    found = [match for line in schedule.splitlines() if (match := LINE.match(line))]
    branches = [re.search(r"= sbr\.rel \((!?)%p", match[2]) for match in found]
    last = max((index for index, branch in enumerate(branches) if branch and branch[1]), default=len(found))
    inside: list[tuple[str, int]] = [("once", 0)]
    for number, (match, branch) in enumerate(zip(found, branches, strict=True)):
        if match[1] == "LB":
            inside.append(("step" if len(inside) == 1 else "loop", number))
        elif match[1] == "PF" and inside[-1][0] in ("step", "branch"):
            inside[-1] = ("step", number)
        yield inside[-1]
        if branch and (number == last or (branch[1] and inside[-1][0] == "loop")):
            inside.pop()
        elif branch and inside[-1][0] in ("step", "branch"):
            inside[-1] = ("branch", number)
