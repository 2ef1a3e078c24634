"""Described TPUs: names, what is compiled for, and what a program says of its collectives; see tests/compilers too."""

import importlib.util
from types import SimpleNamespace

import jax
import pytest

from attention import UsageError, mesh
from attention.kernels import pair_pallas
from tests.sizes import more
from train import main
from train.devices import topology

HLO = """
  %all-reduce.1 = f32[128,4]{1,0} all-reduce(f32[128,4]{1,0} %x), channel_id=1
  %ag = (bf16[8]{0}, bf16[32]{0}) all-gather-start(bf16[8]{0} %y), dimensions={0}
  %all-reduce.2 = f32[] all-reduce(f32[] %z)
  %add = f32[4]{0} add(f32[4]{0} %a, f32[4]{0} %all-reduce.1)
"""


@pytest.mark.parametrize("name", ["v5e", "h100", "v7:2x2", "v5e:4by4", ""])
def test_unknown_topologies_are_one_sentence(name):
    with pytest.raises(UsageError, match=r"There is no topology .*give a generation of v4, v5e, v5p, v6e: v5e:2x2"):
        topology.devices(name)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_without_the_compiler_a_sentence_says_what_to_install():
    with pytest.raises(UsageError, match=r"needs the TPU compiler: pip install -r requirements-tpu\.txt"):
        topology.devices("v5e:2x2")


def test_kernels_are_chosen_for_what_is_compiled_for():
    with mesh.compiled_for(SimpleNamespace(platform="tpu")):
        assert (mesh.platform(), pair_pallas.platform_here(), mesh.described()) == ("tpu", "tpu", True)
    with mesh.compiled_for(SimpleNamespace(platform="cuda", compute_capability="9.0")):
        assert (mesh.platform(), pair_pallas.platform_here()) == ("gpu", "gpu")
    with mesh.compiled_for(SimpleNamespace(platform="cuda", compute_capability="8.0")):
        assert pair_pallas.platform_here() == ""
    assert (mesh.platform(), mesh.described()) == (jax.default_backend(), False)


def test_collectives_are_counted_by_kind_with_their_bytes():
    (line,) = topology.collectives(SimpleNamespace(as_text=lambda: HLO))
    assert "all-reduce 2 times (2.052 kB)" in line  # 128 · 4 · 4 + 4
    assert "all-gather 1 times (64 B)" in line  # 32 · 2
    assert "add" not in line.replace("all-gather", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--topology=v5e:2x2"], "--topology is for --dry-run"),
        more(["--dry-run", "--topology=v5e:2x2", "--devices=4"], "leave out --devices"),
    ],
)
def test_topologies_are_of_dry_runs(flags, message, capsys):
    assert main.main(flags) == 2
    assert message in capsys.readouterr().err
