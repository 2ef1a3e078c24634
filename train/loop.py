"""The whole program in order: devices and mesh, task, state, the steps, the report."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attention.errors import UsageError
from attention.mesh import BATCH
from train import optimizer, tasks
from train.config.durations import Duration
from train.config.schema import Config
from train.devices import memory, processes, sharding
from train.devices.replicas import Replicas
from train.measure import Evaluator
from train.run import curves, digest, results, workdir
from train.run.checkpoints import Checkpoints
from train.run.interrupts import Interrupts
from train.run.progress import Averages, Clock, Display, Shapes
from train.run.writers import Writers, read_record, write_json
from train.state import TrainState
from train.step import Trainer


class NonFiniteLossError(FloatingPointError):
    """A step's loss or gradient norm is not a number."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The config's durations in optimizer steps; 0 is never."""

    total: int
    epoch: int
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
            epoch=steps("an epoch", "1 epoch"),
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
    with processes.together():
        task, plan, replicas = prepare(config)
    workdir.claim(directory, resolved, task.files())
    with (
        workdir.lock(directory),
        jax.set_mesh(replicas.mesh),
        Checkpoints(directory, config.train.keep) as checkpoints,
        processes.ending_alone(),
        checkpoints.telling_of_a_full_disk(),
    ):
        with processes.together():
            run = Run(config, task, plan, replicas, directory, checkpoints)
        try:
            with Interrupts() as interrupts:  # a report has nothing to save, so a signal ends it as any program
                with processes.together():
                    run.start()
                    workdir.keep(directory, resolved, finished=run.step == plan.total)
                finished = run.fit(interrupts)
            return run.report() if finished else None
        finally:
            run.close()


def prepare(config: Config) -> tuple[Any, Plan, Replicas]:
    """Task, plan and replicas of a config.

    Raises:
      UsageError: whatever is wrong with it, or with its data.
    """
    replicas = Replicas.of(config, sharding.make_mesh(config.mesh))
    check_splits(config, replicas)
    task = tasks.find(config.task)(config)
    if len(replicas) > 1:
        task.check_stackable()
    return task, Plan.of(config, task.train_examples), replicas


def check_splits(config: Config, replicas: Replicas) -> None:
    """Raises UsageError where a batch, the heads or the hidden units cannot be split as the mesh wants."""
    wide = tasks.find(config.task).writes  # what it evaluates is split over all devices, however replicas lie
    check_evaluation(config, replicas.mesh, BATCH if wide else replicas.batch_axes)
    axes, across = sharding.named(replicas.batch_axes), sharding.parts(replicas.mesh, replicas.batch_axes)
    parts = across * config.train.accumulate
    sharding.check_divisible({"data.batch_size": (config.data.batch_size, f"{axes} x train.accumulate", parts)})


def check_evaluation(config: Config, mesh: jax.sharding.Mesh, batch: tuple[str, ...] = BATCH) -> None:
    """As `check_splits`, but for what training alone splits; `batch` are the axes that batches are split over."""
    axes, across = sharding.named(batch), sharding.parts(mesh, batch)
    if across % jax.process_count():
        raise UsageError(
            f"{axes} = {across} does not divide over {jax.process_count()} processes; "
            "make it a multiple, since each process reads its own part of the batch."
        )
    if not sharding.reads_its_own(mesh, batch):
        raise UsageError(
            "mesh.tensor reaches over several processes, but each process reads its own part of the batch; make "
            "mesh.tensor smaller."
        )
    tensor = mesh.shape["tensor"]
    sharding.check_divisible(
        {
            "data.eval_batch_size": (config.data.eval_batch_size, axes, across),
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
        accumulate=config.train.accumulate,
        ema=config.train.ema,
    )


class Run:
    """One run in one process: what the steps change, and what happens between them."""

    def __init__(self, config, task, plan: Plan, replicas: Replicas, directory: Path, checkpoints: Checkpoints):
        self.task, self.plan, self.replicas, self.mesh = task, plan, replicas, replicas.mesh
        self.directory, self.checkpoints = directory, checkpoints
        self.batch_size = config.data.batch_size
        self.rate = f"{task.unit}_per_second"
        self.trainer = make_trainer(config, task, plan)
        self.train_step = replicas.train_step(self.trainer, task)
        self.measure = Evaluator(task, replicas)
        self.batches, self._opened = replicas.batches(task), contextlib.ExitStack()
        self._opened.callback(self.batches.close)
        one = self.trainer.shapes(task)
        self.one, self.abstract = one.params, replicas.abstract(one)
        self._lost: set[int] = set()  # steps whose checkpoints turned out damaged
        self._shapes = Shapes()

    def start(self) -> None:
        """Restores where there is something to restore, and says what is trained."""
        restored = self.checkpoints.restore(self.abstract, self.batches)
        (self.state, progress), loaded = (restored, "") if restored else self._new()
        self.step = int(self.state.step.max())  # which all replicas share
        if self.step > self.plan.total:
            raise UsageError(
                f"{self.directory} has been trained for {self.step} steps, but train.length is {self.plan.total} steps"
                "; give as many, or another --workdir."
            )
        self.clock = Clock(progress.get("clock"))
        self.averages, self.epoch = (self._averages(progress, name) for name in ("averages", "epoch"))
        worst = [{"step": 0, "value": -np.inf}] * len(self.replicas)  # the greater value is the better
        self.best = self.replicas.listed(progress["best"]) if progress else worst
        first = processes.is_first()
        self.writers = Writers(self.directory, step=self.step, size=progress.get("record_size", 0), active=first)
        self._opened.callback(self.writers.close)
        self.display = Display(self.plan.total, self.step, self.task.unit)
        self._opened.callback(self.display.close)
        self._header()
        if loaded:
            self.display.say(loaded)

    def fit(self, interrupts: Interrupts) -> bool:
        """Takes the steps that are left; False where it was interrupted, after saving."""
        if self.step == self.plan.total and not any(line["step"] == self.step for line in self._validations()):
            self._validate()  # train.length was lowered to where the run stands
        pending = None
        while self.step < self.plan.total:
            batch = next(self.batches)
            compiles = self._shapes.are_new(batch)
            if pending and compiles:  # whose time is not to have that of the compilation in it
                self._read(*pending)
                pending = None
            self.state, report = self.train_step(self.state, self.replicas.to_devices(batch, own=True))
            self.step += 1
            if pending:
                self._read(*pending)
            pending = (self.step, report, batch["index"], compiles)
            stopping = interrupts.stop_after(self.step)
            if self._stops_after(self.step) or stopping:
                self._read(*pending)
                pending = None
                self._between_steps(stopping)
            if stopping and self.step < self.plan.total:
                self.checkpoints.wait()
                self.display.say(f"Stopped after step {self.step} and saved; the same command continues.")
                return False
        self.checkpoints.wait()  # while signals are heard: what is half written would be lost
        return True

    def report(self) -> dict[str, Any]:
        """Measures test data at the last and the best step, and writes `result.json` and `curves.png`."""
        last, speed = self._evaluate("test", self.state.averaged())
        self._write("test", last, speed)
        at_best = self._best_params()
        best = last if at_best is None else self._evaluate("test", at_best)[0]
        first = processes.is_first()  # which alone writes, and is sure to read, the record
        shared = {
            "seconds": self.clock.seconds,
            "wall_seconds": self.clock.wall,
            "train_examples": self.task.train_examples,
            "seconds_per_epoch": self.clock.seconds_of(self.task.train_examples * self.task.units_per_example),
            self.rate: self.clock.per_second,
            "baselines": self.task.baselines() if first else {},
            **self.task.describe(self.one),
            **workdir.peak_memory(),
            **workdir.environment(),
        }
        record = read_record(self.directory) if first else []
        own = [
            results.of_one(
                results.of_replica(record, replica),
                self.step,
                self.best[replica]["step"],
                last[replica],
                best[replica],
                self.rate,
            )
            for replica in range(len(self.replicas))
        ]
        result = results.of_all(own, self.replicas.seeds, shared)
        if first:
            write_json(self.directory / "result.json", result)
            curves.draw(record, self.directory / "curves.png")
        for line in results.told(result, self.task.best):
            self.display.say(line)
        self.display.say(f"Everything is in {self.directory}: result.json, metrics.jsonl, curves.png, checkpoints/")
        return result

    def close(self) -> None:
        """Closes bar, files and data; safe however far `start` came."""
        self._opened.close()

    def _averages(self, progress: dict[str, Any], name: str) -> list[Averages]:
        """Of each replica, from where a checkpoint left them."""
        saved = self.replicas.listed(progress[name]) if name in progress else [None] * len(self.replicas)
        return [Averages(own) for own in saved]

    def _value(self, metrics: dict[str, float]) -> float:
        """Of what the task calls the best, the greater the better."""
        return metrics[self.task.best] if self.task.best_is_highest else -metrics[self.task.best]

    def _new(self) -> tuple[tuple[TrainState, dict], str]:
        """State and progress before the first step, and what published weights are in it, where the task has some."""
        state = self.replicas.init(self.trainer, self.task)
        loaded, said = zip(*map(self.task.pretrained, self.replicas.each(state.params)), strict=True)
        if said[0]:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
            init = self.replicas.over(self.trainer.init, True)
            state = jax.jit(init, out_shardings=shardings)(self.replicas.stack(loaded))
        return (state, {}), said[0]

    def _best_params(self) -> Any:
        """What each replica evaluates at its own best step; None where that is the last one for all."""
        loaded = {self.step: self.state.averaged()}
        while missing := {best["step"] for best in self.best} - loaded.keys():
            step = min(missing)
            try:
                loaded[step] = self.checkpoints.load_params(step, self.abstract.params, self.trainer.ema > 0)
            except digest.DamagedError as error:
                self._do_without(step, error)
        params = loaded.pop(self.step)
        for step, others in loaded.items():
            params = self.replicas.chosen([best["step"] == step for best in self.best], others, params)
        return params if loaded else None

    def _do_without(self, step: int, error: Exception) -> None:
        """Puts the best of the steps that are left in the place of one whose checkpoint is damaged, saying so."""
        self._lost.add(step)
        left = {*self.checkpoints.steps(), self.step} - self._lost
        lines = [line for line in self._validations() if line["step"] in left]
        for replica, best in enumerate(self.best):
            if best["step"] == step:
                own = results.of_replica(lines, replica)
                values = [{"step": line["step"], "value": self._value(line)} for line in own]
                chosen = self.best[replica] = max(values, key=lambda value: (value["value"], value["step"]))
                whose = self.replicas.name(replica)
                self.display.say(f"{error} It was the best{whose}; the best that is left is step {chosen['step']}.")

    def _validations(self) -> results.Lines:
        """The record's lines of validation data, in all processes."""
        record = read_record(self.directory) if processes.is_first() else []  # which alone is sure to read all of it
        return json.loads(processes.of_first(json.dumps([line for line in record if line["split"] == "validation"])))

    def _stops_after(self, step: int) -> bool:
        plan = self.plan
        return any(plan.due(every, step) for every in (plan.log_every, plan.eval_every, plan.checkpoint_every))

    def _read(self, step: int, report: dict[str, Any], index: np.ndarray, compiled: bool) -> None:
        """Fetches a step's metrics, refuses what is not finite, counts time but where the step was compiled in it."""
        losses = []
        for replica, own in enumerate(self.replicas.split(jax.device_get(report))):
            losses.append(float(own["sums"]["loss"]) / float(own["sums"]["weight"]))
            if not (np.isfinite(losses[-1]) and np.isfinite(own["gradient_norm"])):
                last = max(self.checkpoints.steps(), default=0)
                parts = processes.exchange(json.dumps(self.replicas.split(index)[replica].tolist()))
                raise NonFiniteLossError(
                    f"The loss{self.replicas.name(replica)} was {losses[-1]} and the gradient norm "
                    f"{own['gradient_norm']} at step {step}, on the training examples "
                    f"{[example for part in parts for example in json.loads(part)]}; the last good checkpoint is step "
                    f"{last}. "
                    "Try a lower optimizer.learning_rate, a longer optimizer.warmup or optimizer.clip=1.0."
                )
            self.averages[replica].add(own)
            self.epoch[replica].add(own)
        if compiled:
            self.clock.skip()
        else:
            self.clock.lap(self.batch_size * self.task.units_per_example * len(self.replicas))
        if step % self.plan.epoch == 0:
            self._end_epoch(step)
        self.display.advance(step, float(np.mean(losses)), self.clock)

    def _end_epoch(self, step: int) -> None:
        """Writes the averages of the epoch, where this run has counted all of it."""
        whole = self.epoch[0].steps == self.plan.epoch
        metrics = [self.task.metrics("train", own.take()) for own in self.epoch]
        if whole:
            self._record("epoch", step, metrics, self.clock.per_second)

    def _between_steps(self, interrupted: bool) -> None:
        """Log line, evaluation and checkpoint, in this order, where they are due."""
        plan, step = self.plan, self.step
        if plan.due(plan.log_every, step):
            metrics = [self.task.metrics("train", own.take()) for own in self.averages]
            self._write("train", metrics, self.clock.per_second)
        improved = plan.due(plan.eval_every, step) and self._validate()
        if improved or interrupted or plan.due(plan.checkpoint_every, step):
            self._save()
        self.clock.skip()

    def _validate(self) -> bool:
        """Measures validation data; whether a replica has never been better."""
        metrics, speed = self._evaluate("validation", self.state.averaged())
        self._write("validation", metrics, speed)
        now = [{"step": self.step, "value": self._value(own)} for own in metrics]
        before, pairs = self.best, zip(self.best, now, strict=True)
        self.best = [new if new["value"] >= old["value"] else old for old, new in pairs]
        return self.best != before

    def _save(self) -> None:
        progress = {
            "clock": self.clock.saved,
            "averages": self.replicas.together([own.saved for own in self.averages]),
            "epoch": self.replicas.together([own.saved for own in self.epoch]),
            "best": self.replicas.together(self.best),
            "record_size": self.writers.sync(),
        }
        self.checkpoints.save(self.step, self.state, self.batches, progress, {best["step"] for best in self.best})

    def _evaluate(self, split: str, params: Any) -> tuple[list[dict[str, float]], float]:
        """A split's metrics of each replica, and examples or tokens per second."""
        metrics, speed = self.measure(split, params)
        for replica, own in enumerate(metrics):
            if not np.isfinite(own["loss"]):
                last = max(self.checkpoints.steps(), default=0)
                raise NonFiniteLossError(
                    f"The loss{self.replicas.name(replica)} on {split} data was {own['loss']} after step {self.step}; "
                    f"the last good checkpoint is step {last}. Try a lower optimizer.learning_rate."
                )
        return metrics, speed

    def _write(self, split: str, metrics: list[dict[str, float]], speed: float) -> None:
        """A line of the record for each replica: metrics, seconds of training, throughput of what was measured."""
        timing = self._record(split, self.step, metrics, speed)
        whose = split if len(metrics) == 1 else f"{split}, mean of {len(metrics)}"
        self.display.metrics({"step": self.step, "split": whose} | results.mean(metrics) | timing, self.plan.total)

    def _record(self, split: str, step: int, metrics: list[dict[str, float]], speed: float) -> dict[str, float]:
        """The same, unseen; returns the clock's part of it."""
        timing = {"seconds": self.clock.seconds, self.rate: speed}
        for replica, own in enumerate(metrics):
            self.writers.write({"step": step, "split": split} | self.replicas.label(replica) | own | timing)
        return timing

    def _header(self) -> None:
        about = self.task.describe(self.one)
        measured = {split: self.task.eval_examples(split) for split in self.task.sources}
        counts = ", ".join(f"{n:,} {split}" for split, n in (measured | {"train": self.task.train_examples}).items())
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        say, plan = self.display.say, self.plan
        say(
            f"Training {about['attention']}: {about['parameters']:,} parameters, "
            f"{about['attention_layer_parameters']:,} in an attention layer, {about['tokens']} tokens"
        )
        say(f"Devices: {jax.device_count()} {jax.devices()[0].platform}, mesh {mesh}")
        for line in memory.lines(self.abstract, self.mesh):
            say(line)
        say(f"Data: {counts}; {plan.total:,} steps of {self.batch_size}")
        if len(self.replicas) > 1:
            say(f"Replicas: {len(self.replicas)}, of seeds {self.replicas.seeds[0]} to {self.replicas.seeds[-1]}")
        for remark in self.task.remarks():
            say(remark)
        if plan.warmup != plan.warmup_wanted:
            say(f"The warm-up of {plan.warmup_wanted} steps is longer than the run; it is cut to {plan.warmup}.")
        if self.step:
            say(f"Continuing after step {self.step} of {self.directory}")
