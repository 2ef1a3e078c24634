"""Described TPUs and GPUs: their real compilers compile for them on any machine, without running anything."""

import os
import re
from typing import Any

import jax

from attention.errors import UsageError, unknown
from train.data import packages
from train.dry_run.chips import CHIPS, H100, TOOLKITS, TPUS
from train.mesh import compilation

NODE = 8  # GPUs in a machine
FLAT, SOLID = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"), ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
SHAPES = {"v4": SOLID, "v5e": FLAT, "v5p": SOLID, "v6e": FLAT}  # the compiler also knows larger ones of three axes
EXAMPLES = ("v4:2x2x1", "v5e:4x4", "v5e:16x16", "v5e:16x16x2slices", "v5p:2x2x2", "v6e:4x4", "h100", "h100x8")
QUIET = {  # tells libtpu to use no metadata server, and no lock against a second process
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
PACKAGES = {
    "tpu": ("TPU", "libtpu", "-r requirements-tpu.txt"),
    "cuda": ("GPU", "jax_plugins.xla_cuda{0}", "--no-deps -r requirements-cuda{0}.txt"),
}


def devices(name: str) -> list[jax.Device]:
    """Describes the devices of a topology, such as `v5e:4x4`, `v5e:16x16x2slices` or `h100x8`."""
    chip = next((chip for chip in CHIPS if re.match(rf"{chip}(?![a-z0-9])|{chip}x\d", name)), "")
    if not chip:
        raise unknown("topology", name, EXAMPLES)
    return _tpus(name, chip) if chip in TPUS else _gpus(name, chip)


def cuda() -> str:
    """Names the CUDA version, '12' or '13', of the installed GPU compiler, or else of the one for this jax."""
    versions = ("13", "12") if jax.__version_info__ >= (0, 11) else ("12", "13")
    return next((each for each in versions if packages.is_installed(f"jax_plugins.xla_cuda{each}")), versions[0])


def _tpus(name: str, chip: str) -> list[jax.Device]:
    form = re.fullmatch(r"\w+:(\d+(?:x\d+){1,2}?)(?:x(\d+)slices?)?", name)
    if not form or (chip in ("v5e", "v6e") and form[1] not in FLAT) or form[2] == "0":
        raise _none(name, chip)
    options: dict[str, Any] = {"topology_name": f"{chip}:{form[1]}"}
    if form[1] == "1x1":
        options["chips_per_host_bounds"] = (1, 1, 1)
    if form[2]:
        options["num_slices"] = int(form[2])
    if chip == "v4":
        options["chip_config_name"] = "megacore"  # one device for a chip's two cores, as on other chips
    for key in [key for key in os.environ if key.startswith("TPU_") and os.environ[key].startswith("WARNING")]:
        del os.environ[key]  # set by JAX when imported on a machine without TPUs
    os.environ.update({key: value for key, value in QUIET.items() if key not in os.environ})
    return _described(name, chip, "tpu", options)


def _gpus(name: str, chip: str) -> list[jax.Device]:
    form = re.fullmatch(rf"{chip}(?:x([1-9]\d*))?", name)
    count = int(form[1] or 1) if form else 0
    if not count or (count > NODE and count % NODE):
        raise _none(name, chip)
    machines, of_one = max(1, count // NODE), min(count, NODE)
    described = H100.replace("{toolkit}", TOOLKITS[cuda()])
    return _described(name, chip, "cuda", {"topology": f"1x{machines}x{of_one}", "target_config": described})


def _described(name: str, chip: str, platform: str, options: dict[str, Any]) -> list[jax.Device]:
    from jax.experimental import topologies

    what, package, requirements = (text.format(cuda()) for text in PACKAGES[platform])
    if not packages.is_installed(package):
        raise UsageError(f"Compiling for {name} needs the {what} compiler: pip install {requirements}.")
    jax.config.update("jax_platforms", "cpu")
    try:
        return list(topologies.get_topology_desc(platform=platform, **options).devices)
    except Exception as error:  # XLA raises RuntimeError and errors of its own
        compilation.explain(error)
        raise _none(name, chip) from error


def _none(name: str, chip: str) -> UsageError:
    numbers = ("", *(f"x{count}" for count in (2, 4, 8, 16, 64)))
    return unknown(
        "topology", name, [chip + rest for rest in ([f":{shape}" for shape in SHAPES.get(chip, ())] or numbers)]
    )
