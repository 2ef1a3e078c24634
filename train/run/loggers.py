"""Loggers beside the record: Weights & Biases, or any that the user writes."""

import dataclasses
import functools
import importlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from attention.errors import UsageError, brief, unknown
from train.config.schema import WANDB


class Logger(Protocol):
    """What the function of a `module:function` returns."""

    def write(self, line: dict[str, Any]) -> None:
        """Takes a line of `metrics.jsonl`: `step`, `split`, perhaps `replica`, and numbers by name."""

    def close(self) -> None:
        """Ends the log; the process may go on."""


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """Names the numbers of a line `split/name`, or `split/name/replica_2` where they are a replica's."""
    whose = f"/replica_{line['replica']}" if "replica" in line else ""
    left = {name: value for name, value in line.items() if name not in ("step", "split", "replica")}
    return {f"{line['split']}/{name}{whose}": value for name, value in left.items()}


class WeightsAndBiases:
    """A run of Weights & Biases, which a run that continues continues; the project is $WANDB_PROJECT.

    Raises:
      UsageError: the package is missing.
    """

    def __init__(self, directory: Path, config: dict[str, Any]):
        wandb = _imported(WANDB, "pip install wandb")
        project, identity = os.environ.get("WANDB_PROJECT", "attention-bench"), directory / "wandb_id.txt"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8), encoding="utf-8")
        known = {"id": identity.read_text(encoding="utf-8"), "resume": "allow"}
        self._run = wandb.init(project=project, name=directory.name, dir=str(directory), config=config, **known)

    def write(self, line: dict[str, Any]) -> None:
        """Logs the numbers of a line."""
        self._run.log(numbers(line), step=line["step"])

    def close(self) -> None:
        """Sends what is left."""
        self._run.finish()


def made(names: str, directory: Path, config: Any, say: Callable[[str], None]) -> Iterator[Logger]:
    """Makes the loggers that `train.loggers` names.

    Args:
      names: As `train.loggers` has them.
      directory: The work directory.
      config: The config of the run, a dataclass.
      say: Prints a line.

    Raises:
      UsageError: one cannot be made.
    """
    return (guarded(_started(name, directory, config), name, say) for name in names.split(",") if name)


def guarded(logger: Logger, name: str, say: Callable[[str], None]) -> Logger:
    """Wraps a logger, which is any program: its errors end nothing, and the first of them is said."""
    failed = False

    def attempt(method: Callable[..., object], *arguments: object) -> None:
        nonlocal failed
        try:
            method(*arguments)
        except Exception as error:
            if not failed:
                say(
                    f"The logger {name!r} failed ({type(error).__name__}: {brief(error)}); the run goes on, and "
                    "metrics.jsonl has all lines."
                )
            failed = True

    write, close = (functools.partial(attempt, method) for method in (logger.write, logger.close))
    return SimpleNamespace(write=write, close=close)


def _started(name: str, directory: Path, config: Any) -> Logger:
    make = WeightsAndBiases if name == WANDB else _function(name)
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


def _function(name: str) -> Callable[[Path, dict[str, Any]], Logger]:
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
