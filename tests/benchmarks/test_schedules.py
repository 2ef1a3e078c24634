"""Schedules of the TPU compiler, read from dumps, and what is made of them."""

import json

import pytest

from benchmarks import schedules
from benchmarks.compilers import bundles
from tests.conftest import ROOT

# A grid's loop of 9 bundles: 1, 2 that a branch may skip, and 4 with a product around a loop of 2; 1 outside.
SCHEDULE = """= control target key start
     0   :  { %s0 = smov 0 }
   0x1 LB: > { %p1_p0 = scmp.ge.s32 %s0, 2  ;;  %4 = sbr.rel (%p1_p0) target = $region9 }
   0x2   : > { %v1 = vadd.f32 %v2, %v3 }
   0x3   : > { %v1 = vadd.f32 %v2, %v3 }
   0x4 PF: > { %s1 = smov 0 }
   0x5 LB: >> { %v1 = vpow2.f32 %v2 }
   0x6   : > { %9 = sbr.rel (!%p2_p3) target = $region12 }
   0x7   : > { %v1 = vmatmul.bf16.gmra.mxu0 %v2 }
   0x8   : > { %s2 = smov 1 }
   0x9   :  { %12 = sbr.rel (!%p3_p5) target = $region14 }
"""
USED = "== UTILIZATION:\n" + "\n".join(
    f"{product} 0 {vector} 0 {power} 0 0 0 {spill} 1"
    for product, vector, power, spill in [
        (0, 0, 0, 0), (0, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0),
        (0, 4, 1, 2), (0, 4, 0, 0), (3, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0),
    ]
)  # fmt: skip


def test_a_schedule_is_cut_where_branches_and_loops_begin_and_end():
    regions = bundles.regions(SCHEDULE, USED)
    assert [(x.kind, x.bundles) for x in regions] == [
        ("once", 1), ("step", 1), ("branch", 2), ("step", 4), ("loop", 2)
    ]  # fmt: skip
    assert dict(zip(bundles.SLOTS, regions[4].slots, strict=True))["SPILL"] == 2
    # Of 8 steps, 3 begin a row and 5 tiles are visible: the loop, of 7 trips, and the product run for these.
    counts = bundles.Trips(steps=8, rows=3, visible=5, whole=0, loop=7).of(regions)
    assert counts == [0, 8, 3, 5, 35]


@pytest.fixture(scope="module")
def result():
    return json.loads((ROOT / "benchmarks/results/schedules_tpu.json").read_text())


def test_a_published_matrix_product_takes_what_its_schedule_says(result):
    predicted, published = schedules.check(result)
    assert published / 1.5 < predicted < published * 1.5


def test_no_kernel_takes_less_than_its_roofline(result):
    for chip in result["chips"]:
        rows = schedules.by_name(result, chip)
        for spec in rows.keys() & schedules.NETWORKS:
            for which in schedules.PASSES:
                least = max(schedules.roofline(result, chip, spec, which).values())
                assert least < schedules.cycles(rows[spec], 16384, which), (chip, spec, which)
