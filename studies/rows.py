"""Tables with a row for each mechanism, all trained alike in one model; earlier results are kept."""

import argparse
import dataclasses
import shlex
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.tables import plain_markdown
from attention.errors import UsageError, check_known
from models import mechanisms
from models.files import read_json
from studies import runs
from train import cli
from train.grids import pool

KEPT = ("seed", "best", "best_step", "steps", "parameters", "git")
# Options of today's models, compared with the mechanisms: shared keys and values, a latent, norms, a window.
OPTIONS = ("kv_heads=1", "latent=16", "qk_norm='rms'", "window=8")
TODAY = tuple(f"dot_product({option})" for option in OPTIONS)
Rows = dict[str, list[dict[str, Any]]]  # the results of a spec string's seeds


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of trained mechanisms.

    Attributes:
      name: The name of the JSON in `benchmarks/results` and of the figure in the page.
      specs: The spec strings of the rows, in order.
      flags: The flags of every run, besides `--config.model.attention` and `--config.seed`.
      title: The title of the compared column.
      value: Reads the number in this column from a run's result.
      special: Makes further flags that a spec string needs.
    """

    name: str
    specs: Sequence[str]
    flags: Sequence[str]
    title: str
    value: Callable[[dict[str, Any]], float]
    special: Callable[[str], Sequence[str]] = lambda spec: ()

    def make(self, only: Sequence[str], seeds: int, folder: Path) -> None:
        """Trains runs without a result, then writes the JSON.

        Args:
          only: The spec strings to train.
          seeds: The number of seeds of each, counted from 0.
          folder: The folder of the work directories.

        Raises:
          UsageError: A mechanism or row is unknown, nothing has finished, or kept rows are of other versions.
        """
        for spec in only:
            mechanisms.resolve(spec, 1)
            check_known("row of this table", spec, self.specs)
        todo = {
            place(spec, seed, folder): (
                *self.flags,
                *self.special(spec),
                f"--config.model.attention={spec}",
                f"--config.seed={seed}",
            )
            for seed in range(seeds)
            for spec in only
        }
        runs.train_all(todo, lambda result: f"{self.value(result):.2f}")
        found = {spec: done for spec in self.specs if (done := results(spec, folder))}
        if not found:
            raise UsageError(f"Nothing has finished in {folder}; the logs there say why.")
        self.write(found)

    def write(self, found: Rows) -> None:
        """Writes the JSON: these results, and those of other rows and seeds that it has."""
        some, file = next(iter(found.values()))[0], runs.file_of(self.name)
        before = read_json(file) if file.exists() else {"versions": some["versions"], "runs": {}}
        if any(run["versions"] != before["versions"] for done in found.values() for run in done):
            raise UsageError(f"{file.name} has rows of other versions; move it away, and train all rows again.")
        kept = self._merged(before["runs"], found)
        command = shlex.join(["python", "-m", "train.main", *self.flags, "--config.model.attention=SPEC"])
        about = {"command": f"python -m studies.{self.name}", "each": f"{command} --config.seed=SEED, one CPU a run"}
        runs.write(self.name, about, some, kept)

    def _merged(self, before: Rows, found: Rows) -> Rows:
        """Merges runs, ordered by row and seed; each run keeps its own commit."""
        merged = {}
        for spec in self.specs:
            by_seed = {run["seed"]: run for run in (*before.get(spec, ()), *found.get(spec, ()))}
            merged[spec] = [{key: by_seed[seed][key] for key in KEPT} for seed in sorted(by_seed)]
        return {spec: done for spec, done in merged.items() if done}

    def markdown(self, kept: Rows) -> str:
        """Tabulates the mean and range over seeds, and the parameters."""
        rows = []
        for spec, done in kept.items():
            values = [self.value(run) for run in done]
            spread = f"{min(values):.2f} – {max(values):.2f}"
            cells = f"{statistics.mean(values):.2f}", spread, len(done), f"{done[0]['parameters']:,}"
            rows.append((f"`{spec}`", *cells))
        return plain_markdown(("mechanism", self.title, "lowest – highest", "seeds", "parameters"), rows)


def program(doc: str | None, table: Table, folder: Path, seeds: int) -> Callable[..., int]:
    """Makes the `main` of a table's program, with default values of its flags."""

    @cli.program(
        doc,
        cli.flag("--runs", type=Path, default=folder, help="folder of the work directories"),
        cli.flag("--seeds", type=cli.count, default=seeds, help="number of seeds per row, counted from 0"),
        cli.flag("--only", nargs="*", default=table.specs, help="rows to train"),
        lasting=True,
    )
    def main(flags: argparse.Namespace) -> None:
        """Trains the rows, then writes the JSON."""
        table.make(flags.only, flags.seeds, flags.runs)

    return main


def place(spec: str, seed: int, folder: Path) -> Path:
    """Names the work directory of a run."""
    return folder / f"{pool.name_of(spec)}-{seed}"


def results(spec: str, folder: Path) -> list[dict[str, Any]]:
    """Reads the results of a mechanism's finished seeds."""
    found = {seed: runs.result(place(spec, seed, folder)) for seed in range(100)}
    return [{"seed": seed} | result for seed, result in found.items() if result]
