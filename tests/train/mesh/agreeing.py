"""Run in each of several processes, and print what they find out about one another as JSON.

python -m tests.train.mesh.agreeing FOLDER
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
from jax.sharding import NamedSharding, PartitionSpec

from attention.errors import UsageError
from train.config.schema import MeshConfig
from train.mesh import processes, sharding
from train.run import workdir


def error(program: Callable[[], object]) -> list[str]:
    """Returns the kind and the sentence of the error that a program ends with."""
    try:
        program()
    except UsageError as error:
        return [type(error).__name__, str(error)]
    return []


def fail(*failing: int) -> None:
    """Fails in some of the processes with one sentence."""
    with processes.together():
        if jax.process_index() in failing:
            raise UsageError("No good.")


def claim(*folders: Path, seed: int = 0) -> None:
    """Claims the folders, one inside the other."""
    processes.check_same({"seed": seed}, {"words.json": "[]"})
    if folders:
        with workdir.claimed(folders[0], {"seed": seed}, {"words.json": "[]"}):
            claim(*folders[1:])


def translations(folder: Path) -> list[list[str]]:
    """Translates the validation pairs with a model of noise; returns the translations and the references."""
    from tests.train.tasks.test_language_modelling import noisy  # they use devices, so only after joining
    from tests.train.tasks.test_translation import task_of

    small = {"data__target_tokeniser": "bytes", "data__target_length": 24, "model__decoder_depth": 1}
    task = task_of(folder, "encoder_decoder", **small)
    mesh = sharding.make_mesh(MeshConfig(-1, 1, 1))
    loud = jax.tree.map(lambda x: 3 * x, noisy(task))  # else all sentences get the same translation
    params = jax.device_put(loud, NamedSharding(mesh, PartitionSpec()))
    return list(task.translations("validation", params, mesh))


def main(argument: str) -> dict[str, object]:
    """Collects everything, in the same order in every process."""
    folder, here = Path(argument), jax.process_index()
    run, own = folder / "run", folder / f"of_{here}"
    found = {
        "process": here,
        "processes": jax.process_count(),
        "devices": [jax.local_device_count(), jax.device_count()],
        "said": processes.exchange(f"I am {here}"),
        "first": processes.of_first(f"I am {here}"),
        "one fails": error(lambda: fail(1)),
        "all fail": error(lambda: fail(0, 1)),
        "none fails": error(fail),
        "claimed": error(lambda: claim(run)),
        "claimed by another config": error(lambda: claim(run, seed=1)),
        "claimed by different configs": error(lambda: claim(folder / "other", seed=here)),
        "claimed twice": error(lambda: claim(run, run)),
        "claimed again": error(lambda: claim(run)),
    }
    with mock.patch.object(workdir, "SHARED_WITHIN", 0.5):
        found["not shared"] = error(lambda: claim(own))
    return found | {"translations": translations(folder / "pairs")}


if __name__ == "__main__":
    rest = processes.join(sys.argv[1:])
    print(json.dumps(main(*rest)))
