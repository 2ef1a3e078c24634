"""The final schedule of a TPU kernel, as libtpu dumps it: bundles, slots and spills of its regions.

A bundle is one instruction word, which takes a cycle if nothing stalls. A kernel over a grid is one loop. Its body is
cut at every forward branch and at every label where such a branch ends; loops in it are separate regions.
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
      kind: `once` (outside the grid's loop), `step` (of the grid), `branch` (skippable) or `loop` (within a step).
      bundles: Number of bundles.
      slots: Uses of each of `SLOTS`.
    """

    kind: str
    bundles: int
    slots: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Trips:
    """How often regions run in a call, for one sequence and head.

    Attributes:
      steps: Steps of the grid.
      rows: Tiles along the grid's outer axis.
      visible: Tiles with allowed pairs.
      whole: Tiles in which all pairs are allowed, if the kernel has code of its own for them.
      loop: Trips of a tile's inner loop with exponentials.
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
        tiles; of two, the first runs for whole tiles; of three, as of keys in a causal call, the first for tiles that
        the mask cuts, the second for whole ones, and the third never. Other regions with products run for each visible
        tile. Other regions that a branch may skip count as the beginning or the end of a row of tiles, which for those
        of a visible tile may be wrong by a hundredth of all bundles.
        """
        times = {"once": 0, "step": self.steps, "branch": self.rows, "loop": self.rows * self.strips}
        counts = [self.visible if region.slots[0] else times[region.kind] for region in regions]
        pairs = [
            index
            for index, region in enumerate(regions)
            if region.slots[EXPONENTIALS] and (region.kind == "loop" or region.slots[0])
        ]
        partly = self.visible - self.whole
        tiles = {0: [], 1: [self.visible], 2: [self.whole, partly], 3: [partly, self.whole, 0]}[len(pairs)]
        for index, often in zip(pairs, tiles, strict=True):
            counts[index] = often * (self.loop if regions[index].kind == "loop" else 1)
        return counts


def read(folder: Path) -> Iterator[tuple[str, list[Region]]]:
    """Yields the name and the regions of each dumped kernel with a grid."""
    for file in sorted(folder.glob("*-final_bundles.txt")):
        if "schedule-analysis" not in file.name and re.search("kernel|pair|flash|splash", file.name):
            stem = re.sub(r"-\d+-final_bundles.txt$", "", file.name)
            used = next(x for x in folder.iterdir() if x.name.startswith(stem) and "final_hlo-static" in x.name)
            yield stem.split("-", 1)[1], regions(file.read_text(), used.read_text())


def regions(schedule: str, used: str) -> list[Region]:
    """Reads the regions of a dumped schedule in order, with their slots from the dump of utilisation."""
    slots = [tuple(map(int, line.split())) for line in re.findall(r"^\d+(?: \d+)+$", used, re.MULTILINE)]
    kinds = list(_kinds(schedule))
    if len(kinds) > len(slots):
        slots += [(0,) * len(SLOTS)] * (len(kinds) - len(slots))
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for kind, numbers in zip(kinds, slots, strict=False):
        found.setdefault(kind, []).append(numbers)
    return [Region(kind, len(x), tuple(map(sum, zip(*x, strict=True)))) for (kind, _), x in found.items()]


def _kinds(schedule: str) -> Iterator[tuple[str, int]]:
    """Yields the kind and the number of each bundle's region.

    The branch at the end of a loop is negated. Some forward branches are too, but not in inner loops; the last branch
    ends the grid.
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
