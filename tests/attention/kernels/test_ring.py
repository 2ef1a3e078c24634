"""Attention on devices that share the tokens of each sequence is that of one device; see `attention.kernels.ring`."""

import json

import pytest

from attention.kernels.loops.plan import TilePlan, Tiling
from attention.kernels.loops.scores import DotScore
from attention.kernels.ring import visits
from attention.normaliser import SOFTMAX

CAUSAL = {"causal": True}
PADDED = CAUSAL | {"key_lengths": True}
# A mechanism, the mesh, the mask, the rate of dropout, and the number of key heads, of 4.
CASES = [
    ("dot_product", {"context": 4, "tensor": 2}, PADDED, 0.3, 2),
    ("dot_product", {"context": 8}, CAUSAL, 0.3, 4),
    ("dot_product", {"context": 4}, CAUSAL | {"window": 8}, 0.0, 4),
    ("dot_product", {"context": 4}, {"window": 5}, 0.3, 4),
    ("neural", {"context": 4}, CAUSAL | {"segments": True}, 0.3, 4),
    ("neural", {"context": 2, "data": 2, "tensor": 2}, {}, 0.0, 2),
    ("dot_product(normaliser='sink(learned=True)')", {"context": 4}, CAUSAL, 0.3, 1),
    ("dot_product(normaliser='softpick')", {"context": 4}, {}, 0.0, 4),
    ("scalable_softmax", {"context": 4}, CAUSAL, 0.0, 4),
    ("dot_product(normaliser='none')", {"context": 4, "fsdp": 2}, PADDED, 0.0, 4),
    ("alibi", {"context": 4}, CAUSAL, 0.0, 2),
    ("gaussian(decay=0.1)", {"context": 4}, CAUSAL, 0.0, 4),
    ("differential(initial=0.8)", {"context": 3}, CAUSAL, 0.0, 4),
    ("additive", {"context": 4, "tensor": 2}, CAUSAL | {"window": 20}, 0.0, 4),
    ("soft_cap", {"context": 6}, {"key_lengths": True}, 0.0, 4),
]


@pytest.mark.more
def test_a_ring_is_one_device(run_python):
    done = run_python("-m", "tests.attention.kernels.on_ring", json.dumps(CASES), devices=8)
    for case, error in zip(CASES, json.loads(done.stdout), strict=True):
        assert error < 1e-5, case


def pairs(count, causal, window, stretch):
    """How often each pair of a device's queries and keys is computed, in halves, and the work of each device."""
    plan = TilePlan(DotScore(1.0), SOFTMAX, Tiling(4, 4), stretch, 1, causal, window, 0.0)
    computed, work = {}, [0] * count
    for visit in visits(plan, count):
        for device in range(count):
            home = (device - visit.distance) % count
            if device in visit.hosts:
                rows, pair = range(stretch)[visit.own], (device, home)
            elif device in visit.helpers:
                rows, pair = range(stretch)[visit.guests], (home, device)
            else:
                continue
            work[device] += len(rows) // (2 if causal and not visit.distance else 1)
            for row in rows:
                computed[pair, row] = computed.get((pair, row), 0) + 1
    return computed, work


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 6), (False, 6), (True, 1), (True, 13)])
@pytest.mark.parametrize("stretch", [4, 5])
def test_every_pair_that_is_seen_is_computed_once(count, causal, window, stretch):
    computed, _ = pairs(count, causal, window, stretch)
    assert set(computed.values()) == {1}
    for query in range(count * stretch):
        for key in range(count * stretch):
            seen = (key <= query or not causal) and (not window or abs(query - key) < window)
            if seen:
                assert (((query // stretch), key // stretch), query % stretch) in computed


@pytest.mark.parametrize("count", [2, 3, 4, 8, 15, 16])
def test_causal_work_is_the_same_on_every_device(count):
    _, work = pairs(count, True, 0, 4)
    assert len(set(work)) == 1
    assert work[0] == 4 * count / 2
