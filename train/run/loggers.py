"""Loggers beside the record: Weights & Biases, or any that the user writes."""

import dataclasses
import importlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attention.errors import UsageError, brief, unknown
from train.config.schema import WANDB


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """Names the numbers of a line `split/name`, or `split/name/replica_2` where they are a replica's."""
    whose = f"/replica_{line['replica']}" if "replica" in line else ""
    left = {name: value for name, value in line.items() if name not in ("step", "split", "replica")}
    return {f"{line['split']}/{name}{whose}": value for name, value in left.items()}


class Logger:
    """A logger that `train.loggers` names, which is any program: its errors end no run, and the first of them is said.

    Args:
      name: `wandb`, or `module:function`, which gives an object with `write(line)` and `close()`.
      directory: The work directory.
      config: The config of the run, a dataclass.
      say: Prints a line.

    Raises:
      UsageError: it cannot be made.
    """

    def __init__(self, name: str, directory: Path, config: Any, say: Callable[[str], None]):
        self._name, self._say, self._failed = name, say, False
        self._logger = _started(name, directory, config)

    def write(self, line: dict[str, Any]) -> None:
        """Gives it a line of `metrics.jsonl`: `step`, `split`, perhaps `replica`, and numbers by name."""
        self._attempt(self._logger.write, line)

    def close(self) -> None:
        """Ends the log; the process may go on."""
        self._attempt(self._logger.close)

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception as error:
            if not self._failed:
                self._say(
                    f"The logger {self._name!r} failed ({type(error).__name__}: {brief(error)}); the run goes on, and "
                    "metrics.jsonl has all lines."
                )
            self._failed = True


def _wandb(directory: Path, config: dict[str, Any]) -> Any:
    """Starts a run of Weights & Biases, which a run that continues continues; the project is $WANDB_PROJECT."""
    wandb = _imported(WANDB, "pip install wandb")
    project, identity = os.environ.get("WANDB_PROJECT", "attention-bench"), directory / "wandb_id.txt"
    if not identity.exists():
        identity.write_text(secrets.token_hex(8), encoding="utf-8")
    known = {"id": identity.read_text(encoding="utf-8"), "resume": "allow"}
    run = wandb.init(project=project, name=directory.name, dir=str(directory), config=config, **known)
    return SimpleNamespace(write=lambda line: run.log(numbers(line), step=line["step"]), close=run.finish)


def _started(name: str, directory: Path, config: Any) -> Any:
    make = _wandb if name == WANDB else _function(name)
    try:
        logger = make(directory, dataclasses.asdict(config))
    except UsageError:
        raise
    except Exception as error:  # it is any program
        raise UsageError(
            f"train.loggers={name!r} cannot start ({type(error).__name__}: {brief(error)}); mend that (for wandb: "
            "`wandb login`, or WANDB_MODE=offline), or leave it out."
        ) from error
    if not all(callable(getattr(logger, method, None)) for method in ("write", "close")):
        raise UsageError(
            f"train.loggers={name!r} returns {logger!r}, which has no methods write and close; return a logger, or "
            "leave it out."
        )
    return logger


def _function(name: str) -> Callable[[Path, dict[str, Any]], Any]:
    module, _, function = name.partition(":")
    found = _imported(module, "put its folder into PYTHONPATH")
    if not callable(getattr(found, function, None)):
        raise unknown(f"function of {module} in train.loggers", function, filter(str.isidentifier, vars(found)))
    return getattr(found, function)


def _imported(module: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # it is any program
        raise UsageError(
            f"train.loggers needs the module {module!r} ({type(error).__name__}: {brief(error)}): {remedy}, or leave "
            "it out."
        ) from error
