"""The whole program in order: devices and mesh, task, state, the steps, the report."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attention.errors import UsageError
from train import curves, optimizer, sharding, tasks, workdir
from train.checkpoints import Checkpoints, abstract_state
from train.config import Config
from train.durations import Duration
from train.interrupts import Interrupts
from train.progress import Averages, Clock, Display, averages, duration_text, numbers_text
from train.state import TrainState
from train.step import Trainer
from train.writers import Writers, read_record, write_json


class NonFiniteLossError(FloatingPointError):
    """A step's loss or gradient norm is not a number."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The config's durations in optimizer steps; 0 is never."""

    total: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    warmup: int
    warmup_wanted: int

    @classmethod
    def of(cls, config: Config, examples: int) -> "Plan":
        """Durations of a config whose epoch has so many examples."""

        def steps(field: str, text: str) -> int:
            return Duration.parse(text, field).steps(config.data.batch_size, examples)

        train = config.train
        total = steps("train.length", train.length)
        wanted = steps("optimizer.warmup", config.optimizer.warmup)
        return cls(
            total=total,
            log_every=steps("train.log_every", train.log_every),
            eval_every=steps("train.eval_every", train.eval_every),
            checkpoint_every=steps("train.checkpoint_every", train.checkpoint_every),
            warmup=optimizer.warmup_steps(wanted, total),
            warmup_wanted=wanted,
        )

    def due(self, every: int, step: int) -> bool:
        """Whether something done every so many steps, and at the end, is to be done after `step`."""
        return step == self.total or (every > 0 and step % every == 0)


def train_and_evaluate(config: Config, resolved: dict[str, Any], directory: Path) -> dict[str, Any] | None:
    """Trains until done or interrupted, from where the work directory stands.

    Args:
      config: The validated config.
      resolved: The same as plain values, written to `config.json`.
      directory: The work directory.

    Returns:
      What `result.json` holds, or None where it was interrupted.

    Raises:
      UsageError: a mistake of the user's, before anything is compiled or written.
      NonFiniteLossError: the loss or gradient norm of a step was not finite.
    """
    mesh = sharding.make_mesh(config.mesh)
    check_splits(config, mesh)
    task = tasks.find(config.task)(config)
    plan = Plan.of(config, task.train_examples)
    workdir.claim(directory, resolved, task.files())
    with (
        workdir.lock(directory),
        jax.set_mesh(mesh),
        Interrupts() as interrupts,
        Checkpoints(directory, config.train.keep) as checkpoints,
    ):
        run = Run(config, task, plan, mesh, directory, checkpoints)
        try:
            run.start()
            finished = run.fit(interrupts)
            return run.report() if finished else None
        finally:
            run.close()


def check_splits(config: Config, mesh: jax.sharding.Mesh) -> None:
    """Raises UsageError where a batch, the heads or the hidden units cannot be split as the mesh wants."""
    across, tensor = mesh.shape["data"] * mesh.shape["fsdp"], mesh.shape["tensor"]
    if across % jax.process_count():
        raise UsageError(
            f"mesh.data x mesh.fsdp = {across} does not divide over {jax.process_count()} processes; "
            "make it a multiple, since each process reads its own part of the batch."
        )
    parts = across * config.train.accumulate
    sharding.check_divisible(
        {
            "data.batch_size": (config.data.batch_size, "mesh.data x mesh.fsdp x train.accumulate", parts),
            "data.eval_batch_size": (config.data.eval_batch_size, "mesh.data x mesh.fsdp", across),
            **{field: (size, "mesh.tensor", tensor) for field, size in config.model.split_by_tensor().items()},
        }
    )


def make_trainer(config: Config, task: Any, plan: Plan) -> Trainer:
    """The pure steps of a config."""
    learning_rate = optimizer.schedule(config.optimizer, plan.warmup, plan.total)
    return Trainer(
        loss=task.loss,
        optimizer=optimizer.optimizer(config.optimizer, learning_rate),
        learning_rate=learning_rate,
        key=jax.random.key(config.seed + 1),
        accumulate=config.train.accumulate,
        ema=config.train.ema,
    )


def init_state(trainer: Trainer, task: Any, seed: int, mesh: jax.sharding.Mesh) -> TrainState:
    """The state before the first step, born where it is to lie."""

    def init() -> TrainState:
        return trainer.init(task.init(jax.random.key(seed)))

    return jax.jit(init, out_shardings=sharding.state_shardings(jax.eval_shape(init), mesh))()


def evaluate(task: Any, split: str, eval_step: Any, params: Any, mesh: jax.sharding.Mesh) -> dict[str, float]:
    """A split's metrics: sums of all its batches, divided once, and what else the task measures."""
    total: dict[str, float] = {}
    for batch in task.eval_batches(split, jax.process_index(), jax.process_count()):
        sums = jax.device_get(eval_step(params, sharding.to_devices(batch, mesh)))
        total = {name: total.get(name, 0.0) + float(value) for name, value in sums.items()}
    return task.metrics(split, averages(total)) | task.measured(split, params, mesh)


class Run:
    """One run in one process: what the steps change, and what happens between them."""

    def __init__(self, config, task, plan: Plan, mesh, directory: Path, checkpoints: Checkpoints):
        self.task, self.plan, self.mesh, self.directory, self.checkpoints = task, plan, mesh, directory, checkpoints
        self.batch_size = config.data.batch_size
        self.rate = f"{task.unit}_per_second"
        self.trainer = make_trainer(config, task, plan)
        self.train_step = jax.jit(self.trainer.train_step, donate_argnames="state")
        self.eval_step = jax.jit(self.trainer.eval_step)
        self.batches = task.train_batches(jax.process_index(), jax.process_count())
        self.state = init_state(self.trainer, task, config.seed, mesh)
        self.abstract = abstract_state(self.state)
        self._compiled = False  # a process's first step compiles, and its time does not count

    def start(self) -> None:
        """Restores where there is something to restore, and says what is trained."""
        restored = self.checkpoints.restore(self.abstract, self.batches)
        loaded = "" if restored else self._load_pretrained()
        self.state, progress = restored or (self.state, {})
        self.step = int(self.state.step)
        if self.step > self.plan.total:
            raise UsageError(
                f"{self.directory} has been trained for {self.step} steps, but train.length is {self.plan.total} steps"
                "; give as many, or another --workdir."
            )
        self.clock = Clock(progress.get("clock"))
        self.averages = Averages(progress.get("averages"))
        self.best = progress.get("best", {"step": 0, "value": -np.inf})  # the greater value is the better
        first = jax.process_index() == 0
        self.writers = Writers(self.directory, step=self.step, size=progress.get("record_size", 0), active=first)
        self.display = Display(self.plan.total, self.step, self.task.unit)
        self._header()
        if loaded:
            self.display.say(loaded)

    def fit(self, interrupts: Interrupts) -> bool:
        """Takes the steps that are left; False where it was interrupted, after saving."""
        pending = None
        while self.step < self.plan.total:
            batch = next(self.batches)
            self.state, report = self.train_step(self.state, sharding.to_devices(batch, self.mesh))
            self.step += 1
            if pending:
                self._read(*pending)
            pending = (self.step, report, batch["index"])
            stopping = interrupts.requested  # read once: a signal that comes later is heard after the next step
            if self._stops_after(self.step) or stopping:
                self._read(*pending)
                pending = None
                self._between_steps(stopping)
            if stopping and self.step < self.plan.total:
                self.display.say(f"Stopped after step {self.step} and saved; the same command continues.")
                return False
        return True

    def report(self) -> dict[str, Any]:
        """Measures test data at the last and the best step, and writes `result.json` and `curves.png`."""
        self.checkpoints.wait()
        last, speed = self._evaluate("test", self.state.averaged())
        self._write("test", last, speed)
        best = last
        if self.best["step"] != self.step:
            best, _ = self._evaluate("test", self.checkpoints.load(self.best["step"], self.abstract).averaged())
        result = {
            "steps": self.step,
            "best_step": self.best["step"],
            "final": self._at("train", self.step) | self._at("validation", self.step) | {"test": last},
            "best": self._at("train", self.best["step"]) | self._at("validation", self.best["step"]) | {"test": best},
            "seconds": self.clock.seconds,
            "wall_seconds": self.clock.wall,
            "seconds_per_epoch": self.clock.seconds_of(self.task.train_examples * self.task.units_per_example),
            self.rate: self.clock.per_second,
            "baselines": self.task.baselines(),
            **self.task.describe(self.state.params),
            **workdir.peak_memory(),
            **workdir.environment(),
        }
        if jax.process_index() == 0:
            write_json(self.directory / "result.json", result)
            curves.draw(read_record(self.directory), self.directory / "curves.png")
        self._footer(result)
        return result

    def close(self) -> None:
        """Closes files, bar and data; safe however far `start` came."""
        for name in ("writers", "display", "batches"):
            if hasattr(getattr(self, name, None), "close"):
                getattr(self, name).close()

    def _load_pretrained(self) -> str:
        """Puts published weights in the place of random ones, where the task has some, and reports what they were."""
        params, report = self.task.pretrained(self.state.params)
        if report:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
            self.state = jax.jit(self.trainer.init, out_shardings=shardings)(params)
        return report

    def _stops_after(self, step: int) -> bool:
        plan = self.plan
        return any(plan.due(every, step) for every in (plan.log_every, plan.eval_every, plan.checkpoint_every))

    def _read(self, step: int, report: dict[str, Any], index: np.ndarray) -> None:
        """Fetches a step's metrics, refuses what is not finite, counts time."""
        report = jax.device_get(report)
        loss = float(report["sums"]["loss"]) / float(report["sums"]["weight"])
        if not (np.isfinite(loss) and np.isfinite(report["gradient_norm"])):
            last = max(self.checkpoints.steps(), default=0)
            raise NonFiniteLossError(
                f"The loss was {loss} and the gradient norm {report['gradient_norm']} at step {step}, on the training "
                f"examples {index.tolist()}; the last good checkpoint is step {last}. "
                "Try a lower optimizer.learning_rate, a longer optimizer.warmup or optimizer.clip=1.0."
            )
        self.averages.add(report)
        if self._compiled:
            self.clock.lap(self.batch_size * self.task.units_per_example)
        else:
            self.clock.skip()
            self._compiled = True
        self.display.advance(step, loss, self.clock)

    def _between_steps(self, interrupted: bool) -> None:
        """Log line, evaluation and checkpoint, in this order, where they are due."""
        plan, step = self.plan, self.step
        if plan.due(plan.log_every, step):
            self._write("train", self.task.metrics("train", self.averages.take()), self.clock.per_second)
        improved = False
        if plan.due(plan.eval_every, step):
            metrics, speed = self._evaluate("validation", self.state.averaged())
            self._write("validation", metrics, speed)
            value = metrics[self.task.best] if self.task.best_is_highest else -metrics[self.task.best]
            improved = value >= self.best["value"]
            if improved:
                self.best = {"step": step, "value": value}
        if improved or interrupted or plan.due(plan.checkpoint_every, step):
            self._save()
        self.clock.skip()

    def _save(self) -> None:
        progress = {
            "clock": self.clock.saved,
            "averages": self.averages.saved,
            "best": self.best,
            "record_size": self.writers.size,
        }
        self.checkpoints.save(self.step, self.state, self.batches, progress, self.best["step"])

    def _evaluate(self, split: str, params: Any) -> tuple[dict[str, float], float]:
        """A split's metrics, and examples or tokens per second."""
        started = time.perf_counter()
        metrics = evaluate(self.task, split, self.eval_step, params, self.mesh)
        if not np.isfinite(metrics["loss"]):
            last = max(self.checkpoints.steps(), default=0)
            raise NonFiniteLossError(
                f"The loss on {split} data was {metrics['loss']} after step {self.step}; the last good checkpoint is "
                f"step {last}. Try a lower optimizer.learning_rate."
            )
        units = len(self.task.sources[split]) * self.task.units_per_example
        return metrics, units / (time.perf_counter() - started)

    def _write(self, split: str, metrics: dict[str, float], speed: float) -> None:
        """One line of the record: metrics, seconds of training so far, throughput of what was measured."""
        timing = {"seconds": self.clock.seconds, self.rate: speed}
        line = {"step": self.step, "split": split} | metrics | timing
        self.writers.write(line)
        self.display.metrics(line, self.plan.total)

    def _at(self, split: str, step: int) -> dict[str, dict[str, float]]:
        lines = [line for line in read_record(self.directory) if line["split"] == split and line["step"] == step]
        omitted = ("step", "split", "seconds", self.rate)
        return {split: {k: v for k, v in lines[-1].items() if k not in omitted}} if lines else {}

    def _header(self) -> None:
        about = self.task.describe(self.abstract.params)
        counts = ", ".join(f"{len(source):,} {split}" for split, source in self.task.sources.items())
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        say, plan = self.display.say, self.plan
        say(
            f"Training {about['attention']}: {about['parameters']:,} parameters, "
            f"{about['attention_layer_parameters']:,} in an attention layer, {about['tokens']} tokens"
        )
        say(f"Devices: {jax.device_count()} {jax.devices()[0].platform}, mesh {mesh}")
        say(f"Data: {counts}; {plan.total:,} steps of {self.batch_size}")
        for remark in self.task.remarks():
            say(remark)
        if plan.warmup != plan.warmup_wanted:
            say(f"The warm-up of {plan.warmup_wanted} steps is longer than the run; it is cut to {plan.warmup}.")
        if self.step:
            say(f"Continuing after step {self.step} of {self.directory}")

    def _footer(self, result: dict[str, Any]) -> None:
        say, test = self.display.say, {at: numbers_text(result[at]["test"]) for at in ("final", "best")}
        trained = duration_text(self.clock.seconds)
        say(f"Test at the last step ({self.step}), after {trained} of training: {test['final']}")
        say(f"Test at step {self.best['step']}, of the best {self.task.best} on validation data: {test['best']}")
        if result["baselines"]:
            say("Baselines on test: " + numbers_text(result["baselines"]))
        say(f"Everything is in {self.directory}: result.json, metrics.jsonl, curves.png, checkpoints/")
