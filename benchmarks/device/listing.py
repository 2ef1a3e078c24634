"""All items in the order of their value: first what may be wrong, then what is fast, other libraries before ours."""

from benchmarks.device import core, loop, models, peers, right
from benchmarks.device.items import GROUPS, Item


def items(tiny: bool) -> list[Item]:
    """Lists the items, at the sizes of a device or at toy sizes; of whole models, all of one stack at a time."""
    whole = sorted((*models.items(tiny), *loop.items(tiny)), key=lambda item: item.stack)
    known = [*right.items(tiny), *peers.items(tiny), *core.items(tiny), *whole]
    return sorted(known, key=lambda item: GROUPS.index(item.group))
