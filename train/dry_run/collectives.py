"""The collectives of a compiled program: their number and bytes by kind, and the time that the links need."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from train.dry_run import chips
from train.mesh.memory import scaled

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|called_computations|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a compiled program."""

    kind: str  # its name in HLO, such as `all-reduce`
    size: int  # the bytes of its result on a device
    groups: np.ndarray  # the devices that take part together, `(groups, devices)`; all if the program names none
    times: int  # how often it runs in a step, by the known trip counts

    @property
    def sent(self) -> float:
        """Counts the least bytes that a device sends in a step: those of a ring over its group."""
        n = self.groups.shape[1] if self.groups.size else 2
        share = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1, "collective-permute": 1}
        return self.times * self.size * share.get(self.kind, (n - 1) / n)

    def crosses(self, place: Sequence[int]) -> bool:
        """Tells whether a group spans several places, such as slices, given each device's `place`."""
        return any(len({place[device] for device in group}) > 1 for group in self.groups)


def of(text: str, count: int) -> list[Collective]:
    """Finds the collectives in an optimised program's HLO text for `count` devices."""
    found = (_collective(line, count, times) for line, times in lines_of(text))
    return [collective for collective in found if collective]


def lines_of(text: str) -> Iterator[tuple[str, int]]:
    """Yields the lines of an optimised program's HLO text that run, with how often, by the known trip counts."""
    where, lines = "", defaultdict(list)
    for line in text.splitlines():
        if named := _COMPUTATION.match(line.strip()):
            where = named[1]
        elif where:
            lines[where].append(line)
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    times = _times(lines, entry[1]) if entry else {}
    yield from ((line, times[name]) for name in lines if times.get(name) for line in lines[name])


def _times(lines: dict[str, list[str]], entry: str) -> dict[str, int]:
    """Counts how often each computation runs in a step; a loop of unknown length counts once."""
    times: dict[str, int] = defaultdict(int)

    def visit(name: str, count: int) -> None:
        times[name] += count
        for line in lines.get(name, ()):
            trips = _trips(line, lines) if " while(" in line else 1
            for called in _CALLED.findall(line):
                for callee in re.findall(r"[\w.\-]+", called):
                    visit(callee, count * trips)

    visit(entry, 1)
    return times


def _trips(line: str, lines: dict[str, list[str]]) -> int:
    """Counts a loop's runs: the compiler's note, or the bound in the loop's condition."""
    if known := _TRIPS.search(line):
        return int(known[1])
    condition = "\n".join(lines.get(re.search(r"condition=%?([\w.\-]+)", line)[1], ()))
    bounds = [int(n) for n in re.findall(r"= s32\[\]\S* constant\((\d+)\)", condition)]
    return bounds[0] if len(bounds) == 1 and "direction=LT" in condition else 1


def _collective(line: str, count: int, times: int) -> Collective | None:
    form = _COLLECTIVE.search(line)
    if not form:
        return None
    shapes, kind, started = form.groups()
    results = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    if started:  # a start gives its operand too, and a permutation's its semaphores
        arrays = [result for result in results if result[0] in BYTES]
        results = arrays[len(arrays) // 2 :] if kind != "collective-permute" else arrays[1:2]
    size = sum(BYTES.get(dtype, 0) * math.prod(map(int, filter(None, shape.split(",")))) for dtype, shape in results)
    return Collective(kind, size, _groups(line, count), times)


def _groups(line: str, count: int) -> np.ndarray:
    if iota := _IOTA.search(line):
        groups, devices, shape, order = iota.groups()
        ids = np.arange(math.prod(map(int, shape.split(",")))).reshape([int(n) for n in shape.split(",")])
        ids = ids.transpose([int(n) for n in order.split(",")]) if order else ids
        return ids.reshape(int(groups), int(devices))
    if listed := _LISTED.search(line):
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])])
    return np.arange(count)[None]


def lines(text: str, devices: Sequence[jax.Device]) -> Iterator[str]:
    """Yields lines about the collectives of a program for these devices, and the time on their links."""
    collectives = of(text, len(devices))
    if not collectives:
        return
    kinds = dict.fromkeys(collective.kind for collective in collectives)
    listed = []
    for kind in kinds:
        alike = [c for c in collectives if c.kind == kind]
        times, size = sum(c.times for c in alike), sum(c.times * c.size for c in alike)
        listed.append(f"{kind} {times} times ({scaled(size, 'B')})")
    yield f"Collectives of a step: {', '.join(listed)}"
    place = [d.process_index if d.platform == "gpu" else getattr(d, "slice_index", None) for d in devices]
    if chip := chips.of(devices[0]):
        near = sum(c.sent for c in collectives if not c.crosses(place))
        far = sum(c.sent for c in collectives if c.crosses(place))
        yield f"A device sends {scaled(near, 'B')}, which takes its links at least {1000 * near / chip.links:.3g} ms"
        if far:
            yield f"Between slices or machines it sends {scaled(far, 'B')}" + (
                f", which takes the network at least {1000 * far / chip.network:.3g} ms" if chip.network else ""
            )
