"""The kernels' schedules do not grow: bundles and spills of the last record, for the compiler that made it."""

import importlib.util
import json
from importlib import metadata

import pytest

from benchmarks import schedules
from tests.conftest import ROOT
from tests.sizes import more

RECORD = json.loads((ROOT / "benchmarks/results/schedules_tpu.json").read_text())

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or metadata.version("libtpu") != RECORD["compiler"]["libtpu"],
    reason=f"the record is of libtpu {RECORD['compiler']['libtpu']}: make test-compilers installs it",
)


@pytest.mark.parametrize("spec", ["neural(dim=2)", *map(more, ("neural(dim=16)", "alibi"))])
def test_schedules_have_no_more_bundles_and_spills_than_recorded(spec, run_python):
    row = json.loads(run_python("-m", "benchmarks.compilers.tpu", "v5e", spec).stdout)
    recorded = schedules.by_name(RECORD, "v5e")[spec]
    for which in schedules.PASSES:
        assert schedules.cycles(row, 4096, which) <= 1.01 * schedules.cycles(recorded, 4096, which)
        assert schedules.spills(row, which) <= schedules.spills(recorded, which)
