"""Described chips: their names, what is compiled for them, and what compilers say; see tests/compilers too."""

import contextvars
import importlib.util
from types import SimpleNamespace
from typing import ClassVar

import jax
import numpy as np
import pytest

from attention import UsageError, mesh
from attention.kernels import mlp
from train.dry_run import chips, collectives, dry, topology
from train.mesh import compilation, memory, sharding

HLO = """
HloModule step

%c (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  ROOT %lt.101 = pred[]{:T(512)} compare(%get-tuple-element, %bound), direction=LT, metadata={}
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %ag = (bf16[8]{0}, bf16[32]{0}) all-gather-start(bf16[8]{0} %y), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %add = f32[4]{0} add(f32[4]{0} %a, f32[4]{0} %all-reduce.1)
}

%outer (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %inner = (s32[], f32[8]) while(%t), condition=%c, body=%body
}

ENTRY %main (x: f32[128,4]) -> f32[128,4] {
  %all-reduce.1 = f32[128,4]{1,0} all-reduce(f32[128,4]{1,0} %x), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}
  %all-reduce.2 = f32[] all-reduce(f32[] %z), to_apply=%sum
  %loop = (s32[], f32[8]) while(%t), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"2"}}
}
"""


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("v5e", "v5e:8x8"), ("v5e:4by4", "v5e:4x4"), ("h100x9", "h100x8"), ("v6e:3x3", "v6e"), ("h200", "h100"), ("", "")],
)
def test_unknown_topologies_are_one_sentence_with_the_nearest_name(name, nearest):
    with pytest.raises(UsageError, match=rf"Unknown topology '{name}'\..*{nearest}.*Valid: .*(v5e:16|h100x8|v6e:4x4)"):
        topology.devices(name)


CUDA = topology.cuda()


@pytest.mark.parametrize(
    ("name", "package", "sentence"),
    [
        ("v5e:2x2", "libtpu", r"needs the TPU compiler: pip install -r requirements-tpu\.txt"),
        ("h100x8", f"jax_cuda{CUDA}_plugin", rf"GPU compiler: pip install --no-deps -r requirements-cuda{CUDA}\.txt"),
    ],
)
def test_without_the_compiler_a_sentence_says_what_to_install(name, package, sentence):
    if importlib.util.find_spec(package) is not None:
        pytest.skip("the compiler is installed")
    with pytest.raises(UsageError, match=sentence):
        topology.devices(name)


@pytest.mark.parametrize(
    ("jax_version", "there", "expected"),
    [((0, 10, 2), (), "12"), ((0, 11, 2), (), "13"), ((0, 10, 2), ("13",), "13"), ((0, 11, 2), ("12",), "12")],
)
def test_the_gpu_compiler_is_that_which_is_here_or_goes_with_jax(jax_version, there, expected, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", jax_version)
    monkeypatch.setattr(topology.packages, "is_installed", lambda name: name.endswith(there) if there else False)
    assert topology.cuda() == expected


def test_kernels_are_chosen_for_what_is_compiled_for():
    with mesh.compiled_for(SimpleNamespace(platform="tpu")):
        assert (mesh.platform(), mlp.platform_here(), mesh.described()) == ("tpu", "tpu", True)
    with mesh.compiled_for(SimpleNamespace(platform="cuda", compute_capability="9.0")):
        assert (mesh.platform(), mlp.platform_here()) == ("gpu", "gpu")
    with mesh.compiled_for(SimpleNamespace(platform="cuda", compute_capability="8.0")):
        assert mlp.platform_here() == ""
    assert (mesh.platform(), mesh.described()) == (jax.default_backend(), False)


def test_collectives_count_by_kind_group_and_trips_of_loops():
    one, other, gather = sorted(collectives.of(HLO, 8), key=lambda c: (c.kind == "all-gather", -c.size))
    assert (one.size, one.groups.tolist(), one.sent) == (128 * 4 * 4, [[0, 1], [2, 3], [4, 5], [6, 7]], 2048)
    assert (other.size, other.groups.shape, other.sent) == (4, (1, 8), 2 * 7 / 8 * 4)
    assert (gather.size, gather.times, gather.sent) == (32 * 2, 6, 6 * 64 * 3 / 4)
    assert gather.groups.tolist() == np.arange(8).reshape(4, 2).T.tolist()


def test_lines_of_collectives_say_what_links_and_network_need():
    devices = [SimpleNamespace(device_kind="TPU v5 lite", platform="tpu", slice_index=n // 4) for n in range(8)]
    kinds, links, network = collectives.lines(HLO, devices)
    assert "all-reduce 2 times (2.052 kB)" in kinds
    assert "all-gather 6 times (384 B)" in kinds
    assert "sends 2.048 kB, which takes its links at least 1.02e-05 ms" in links  # 2,048 B at 200 GB/s
    assert "sends 295 B, which takes the network at least 9.44e-05 ms" in network  # 288 + 7 B at 3.125 GB/s
    assert not list(collectives.lines("ENTRY %main () -> f32[] {\n}", devices))


@pytest.mark.parametrize("name", chips.CHIPS)
def test_chips_have_published_figures(name):
    chip = chips.CHIPS[name]
    assert chips.of(SimpleNamespace(device_kind=chip.kind)) is chip
    assert chip.flops / chip.bandwidth > 150  # operations a byte: a slip of a power of ten shows here
    assert chip.links / chip.bandwidth > 0.1


# What libtpu 0.0.42 raises, but for the first, which is of earlier versions.
OUT = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm. Used 20.50G of 15.75G hbm."
HBM = "Ran out of memory on HBM, the total memory required for HLO temporaries (26.84G) exceeds available HBM (15.75G)."
VMEM = (
    "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: #allocation2 [shape = "
    "'u8[268435456]{0}', space=vmem, size = 0x10000000, scoped, tag = 'input window allocation for operator input 0."
)
PALLAS = (
    "Unimplemented primitive in Pallas TPU lowering for tc: sort. Please file an issue at https://github.com/jax-ml"
)
MOSAIC = "INTERNAL: Mosaic failed to compile TPU kernel: Bad lhs type\n\nThe MLIR operation involved:\n ..."

# What jax 0.11.2 raises where CUDA is in no folder that it looks in.
NO_PTXAS = (
    "UNAVAILABLE: No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink is available.\n"
    " - ptxas_path: Couldn't find a suitable version of ptxas. The following locations were considered: /bin/ptxas"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OUT, r"takes 22\.0 GB of a device's 16\.9 GB"),
        (MOSAIC, "refuses a kernel: Bad lhs type; use model.implementation='chunked' or 'auto'"),
        (HBM, r"takes 28\.8 GB of a device's 16\.9 GB"),
        (VMEM, "refuses a kernel: a tile takes 268 MB of 134 MB of the chip's vector memory; use model.implementation"),
        (PALLAS, "refuses a kernel: Unimplemented primitive in Pallas TPU lowering for tc: sort; use"),
        (NO_PTXAS, "CUDA's ptxas or libdevice is not found; set CUDA_ROOT to CUDA's folder"),
        ("INTERNAL: libdevice not found at ./libdevice.10.bc", "add its bin to PATH"),
        ("ABORTED: the libtpu multi-process lockfile is held", "Another process uses the TPU compiler; wait for it"),
    ],
)
def test_what_compilers_refuse_is_one_sentence(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        compilation.explain(RuntimeError(text))
    compilation.explain(RuntimeError("an error of another kind"))


def test_auto_goes_on_without_a_kernel_that_is_refused_and_says_so(capsys):
    def lower():
        if not mesh.kernels_left_out():
            raise RuntimeError(MOSAIC)
        return jax.jit(lambda x: x + 1).lower(1)

    def twice():
        assert [int(compilation.compiled(lower)(x)) for x in (1, 2)] == [2, 3]

    contextvars.copy_context().run(twice)
    assert capsys.readouterr().err.count("refuses a kernel, so XLA computes attention: Bad lhs type.") == 1
    assert not mesh.kernels_left_out()
    assert not compilation.refused_kernel(RuntimeError(NO_PTXAS))  # which says nothing of the kernel


def test_a_named_kernel_that_is_refused_ends_with_a_sentence():
    def refused():
        raise RuntimeError(MOSAIC)

    def run():
        with pytest.raises(UsageError, match="Bad lhs type; use"):
            compilation.compiled(refused)

    contextvars.copy_context().run(run)


@pytest.mark.parametrize(("free", "fits"), [(2_000_000, False), (4_000_000, True)])
def test_too_little_memory_to_compile_is_one_sentence(free, fits, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    memory.MEMINFO.write_text(f"MemTotal: 9 kB\nMemAvailable:   {free} kB\n")
    if fits:
        return memory.check_compiling()
    with pytest.raises(UsageError, match=r"takes about 3 GB of this machine's memory, and 2\.048 GB are free"):
        memory.check_compiling()


class Planned:
    """A dry run on two devices that fits if the config has the overrides that the test asks for."""

    needs: ClassVar[dict] = {}

    def __init__(self, config):
        batch = SimpleNamespace(batch_size=8)
        train = SimpleNamespace(loss_chunk=0, accumulate=1)
        config_of = SimpleNamespace(data=batch, train=train, model=SimpleNamespace(remat="none", scan=False))
        replicas = SimpleNamespace(mesh=SimpleNamespace(shape={"data": 2, "fsdp": 1}))
        self.setup, self.overrides = SimpleNamespace(config=config_of, replicas=replicas), config

    @classmethod
    def of(cls, config, devices):
        return cls(config)

    def compile(self):
        if "train.loss_chunk" in self.overrides and len(self.overrides) == 1:
            raise UsageError("train.loss_chunk is for predictions of tokens")
        if not self.needs.items() <= self.overrides.items():
            raise compilation.TooLarge(25e9, 16e9)

    def report(self):
        yield "Dry run"
        self.compile()

    def memory(self, _):
        return {"all": 12_100_000_000}


@pytest.mark.parametrize(
    ("needs", "sentence"),
    [
        ({"model.remat": "block"}, r"needs 25 GB .* 16 GB; with --config\.model\.remat=block it needs 12\.1 GB\."),
        ({"mesh.fsdp": "2"}, r"with --config\.mesh\.data=1 --config\.mesh\.fsdp=2 it needs"),
        ({"model.remat": "block", "train.accumulate": "4"}, r"with .*remat=block .*accumulate=4 it needs 12\.1 GB"),
        ({"no": "such"}, "nothing that was tried makes it fit; use more devices"),
    ],
)
def test_what_does_not_fit_is_told_with_what_helps(needs, sentence, monkeypatch):
    monkeypatch.setattr(dry, "DryRun", Planned)
    monkeypatch.setattr(Planned, "needs", needs)
    lines = []
    with pytest.raises(UsageError, match=sentence):
        lines.extend(dry.report(dict, []))
    monkeypatch.setattr(Planned, "needs", {})
    assert list(dry.report(dict, [])) == ["Dry run"]


def test_slices_are_split_by_data_alone():
    kind = {"platform": "tpu", "device_kind": "", "core_on_chip": 0}
    devices = [SimpleNamespace(**kind, slice_index=n // 4, coords=(n % 2, n // 2 % 2, 0)) for n in range(8)]
    placed = np.vectorize(lambda device: device.slice_index)(sharding.over_slices(devices, (4, 2, 1)))
    assert placed.tolist() == [[[0], [0]], [[0], [0]], [[1], [1]], [[1], [1]]]
    with pytest.raises(UsageError, match=r"mesh\.data=1 does not divide over 2 slices; make it a multiple of 2"):
        sharding.over_slices(devices, (1, 8, 1))
