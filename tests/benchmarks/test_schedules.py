"""Schedules of the TPU compiler, read from dumps, and what is made of them."""

import json
import os
import pathlib
import types

import jax
import jax.numpy as jnp
import pytest

import attention
from attention import Mask, mesh
from attention.kernels import loops, mlp, splash, xla
from benchmarks import schedules
from benchmarks.compilers import bundles, gpu
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


def visits(kind, products):
    """A region that visits pairs."""
    return bundles.Region(kind, 1, tuple({"MXU": products, "EUP": 1}.get(slot, 0) for slot in bundles.SLOTS))


@pytest.mark.parametrize(
    ("regions", "counts"),
    [
        ([visits("branch", 1), visits("branch", 1)], [3, 2]),  # whole tiles, and those that the mask cuts
        ([visits("loop", 0), visits("loop", 0)], [3 * 7, 2 * 7]),
        ([visits("loop", 1)] * 3, [2 * 7, 3 * 7, 0]),
    ],
)
def test_tiles_that_the_mask_cuts_have_code_of_their_own(regions, counts):
    assert bundles.Trips(steps=8, rows=3, visible=5, whole=3, loop=7).of(regions) == counts


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


# Where chips differ, and no rule tells them apart: benchmarks/README.md says so.
STAYS = {("v6e", "neural(dim=None)", 16384): "pallas"}


def test_auto_takes_on_a_tpu_what_is_predicted_to_need_fewest_cycles(result, monkeypatch):
    taken = []
    served = {
        "pallas": ((splash, "attend"), (mlp, "attend")),
        "xla": ((xla, "attend"),),
        "chunked": ((loops, "attend"),),
    }
    for name, functions in served.items():
        for module, function in functions:
            stub = lambda call, name=name: taken.append(name) or (jnp.zeros_like(call.value), None)  # noqa: E731
            monkeypatch.setattr(module, function, stub)
    for chip in result["chips"]:
        cases = schedules.predicted(result, chip)
        assert {("dot_product", 256), ("neural(dim=2)", 16384)} <= cases.keys()
        for (spec, tokens), cycles in cases.items():
            x = jax.ShapeDtypeStruct((1, tokens, 8, 64), jnp.bfloat16)
            params = jax.eval_shape(lambda spec=spec: attention.init(spec, jax.random.key(0), 8, 64))
            with mesh.compiled_for(types.SimpleNamespace(platform="tpu")):
                attend = lambda params, x, spec=spec: attention.attend(spec, params, x, x, x, mask=Mask(causal=True))  # noqa: E731
                jax.eval_shape(attend, params, x)
            least = min(cycles, key=cycles.get)
            assert taken.pop() == STAYS.get((chip, spec, tokens), least), (chip, spec, tokens, cycles)
            assert (chip, spec, tokens) not in STAYS or least != STAYS[chip, spec, tokens]


# A loop over tiles, in which another of 2 instructions visits units, and a branch skips masks; then a loop that waits.
SASS = """
.L_x_1:
        /*0000*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR24], RZ, !UPT ;
.L_x_2:
        /*0010*/                   FFMA R2, R2, R8.reuse, R147 ;
        /*0020*/              @!P1 BRA `(.L_x_2) ;
        /*0022*/               @P3 BRA `(.L_x_4) ;
        /*0024*/                   ISETP.GT.AND P4, PT, R0, R61, PT ;
        /*0026*/                   FSEL R11, R0, -1.7e+38, !P4 ;
.L_x_4:
        /*0030*/              @!P0 MUFU.EX2 R2, R2 ;
        /*0040*/                   LDG.E R2, desc[UR6][R68.64] ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0060*/                   NANOSLEEP.SYNCS 0x989680 ;
        /*0070*/              @!P1 BRA `(.L_x_3) ;
"""


def test_instructions_of_a_gpus_tile_are_counted_as_often_as_their_loops_run():
    counts, products = gpu.of_tile(SASS, trips=16)
    assert counts == {"others": 1 + 16 + 1 + 1, "floats": 16, "exponentials": 1, "memory and shuffles": 1}
    assert products == 64 * 32 * 16 / 2048


def test_an_sm_holds_as_many_blocks_as_its_registers_and_shared_memory_allow():
    assert gpu.occupancy(registers=255, shared=10_000, warps=4) == 2
    assert gpu.occupancy(registers=128, shared=100 * 1024, warps=4) == 2
    assert gpu.occupancy(registers=64, shared=0, warps=4) == 8


def test_what_a_tpu_takes_stands_beside_what_was_predicted(result):
    shape = {"batch": 2, "length": 4096, "heads": 8, "width": 64, "dtype": "bfloat16", "causal": True}
    kernels = schedules.by_name(result, "v5e")["neural(dim=2)"]["kernels"]
    bundles_of_a_head = sum(kernel["tokens"]["4096"]["bundles"] for kernel in kernels)
    seconds = 3 * 16 * bundles_of_a_head / 1.5e9
    rows = [{"name": "neural, pallas", "seconds": seconds}, {"name": "neural, xla", "seconds": 1.0}]
    measured = {"shape": shape, "forward": [{"name": "neural(dim=16), pallas"}], "forward+backward": rows}
    lines = schedules.against(measured, "TPU v5 lite").strip().splitlines()
    taken, least = f"{1e3 * seconds:.3f}", f"{1e3 * seconds / 3:.3f}"
    assert lines[2:] == [f"| `neural(dim=2)` | forward+backward | {taken} | {least} | 3.00 |"]
    assert schedules.against(measured, "cpu") == ""
    assert schedules.against(measured | {"shape": shape | {"dtype": "float32"}}, "TPU v5 lite") == ""


def test_a_row_that_is_not_there_is_refused_before_anything_is_compiled(refused):
    assert "Unknown row 'additve'. Did you mean 'additive'?" in refused(gpu.main, ["--only", "additve"])
    assert "Did you mean 'splash(512)'?" in refused(schedules.main, ["--only", "splash(51)"])


@pytest.fixture
def compiled(monkeypatch):
    """Pretends that there is a compiler, which gives each of the wanted rows so many bundles."""

    def compiled(chip, names):
        regions = [{"slots": [0] * len(bundles.SLOTS)}]
        for name in names or ("splash(512)", "alibi"):
            yield {"name": name, "kernels": [{"name": "pair", "regions": regions, "tokens": {"1024": {"bundles": 5}}}]}

    monkeypatch.setattr(schedules, "compiled", compiled)
    monkeypatch.setattr(schedules.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(schedules.metadata, "version", lambda name: "1.0")


def test_what_is_not_compiled_anew_stays_in_the_file(compiled, tmp_path, refused):
    out = f"--out={tmp_path / 'record.json'}"
    rows = lambda: json.loads((tmp_path / "record.json").read_text())["chips"]  # noqa: E731
    assert schedules.main(["--only", "alibi", out]) == 0  # with no opponent to compare with
    assert schedules.main([out]) == 0
    whole = rows()
    for flags in (["--chips", "v5e"], ["--chips", "v6e", "--only", "alibi"]):
        assert schedules.main([*flags, out]) == 0
        assert rows() == whole
    record = json.loads((tmp_path / "record.json").read_text()) | {"compiler": {"libtpu": "0.9"}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert "are not of jaxlib 1.0 and libtpu 1.0" in refused(schedules.main, ["--chips", "v5e", out])


def test_what_a_refused_kernel_dumped_is_gone_and_flags_are_as_before(monkeypatch, tmp_path):
    seen = []

    def refuse(function, shapes, dtype, device):
        folder = pathlib.Path(os.environ["MOSAIC_GPU_DUMP_TO"])
        seen.append((os.environ["XLA_FLAGS"], [*folder.iterdir()]))
        (folder / "passes").mkdir()
        (folder / "passes/kernel.ptx").write_text("mosaic_gpu_kernel")
        (folder / "kernel.ptx").write_text("mosaic_gpu_kernel")
        raise NotImplementedError("too large")

    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    monkeypatch.delenv("MOSAIC_GPU_DUMP_TO", raising=False)
    monkeypatch.setattr(gpu, "found_tools", lambda: ("ptxas", "nvdisasm"))
    monkeypatch.setattr(gpu.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(gpu.topology, "devices", lambda name: [None])
    monkeypatch.setattr(gpu, "contestants", lambda: [gpu.GpuCase(name, "float32", None, (), 1) for name in "ab"])
    monkeypatch.setattr(gpu.described, "compiled", refuse)
    out = tmp_path / "rows.json"
    assert gpu.main([f"--out={out}"]) == 0
    assert [row["refused"] for row in json.loads(out.read_text())["rows"]] == ["too large", "too large"]
    assert [files for _, files in seen] == [[], []]
    assert all(flags.startswith("--xla_of_the_user=1 --xla_dump_to=") for flags, _ in seen)
    assert os.environ["XLA_FLAGS"] == "--xla_of_the_user=1"
    assert "MOSAIC_GPU_DUMP_TO" not in os.environ
