"""The life of a run in its work directory: it restores, logs, evaluates, saves, and stops when asked."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attention import specs
from attention.errors import UsageError, listed
from train.cli import files
from train.mesh import processes
from train.run import digest, evaluations, report, results, workdir
from train.run.checkpoints import Checkpoints, evaluated
from train.run.evaluations import Evaluator, Measured
from train.run.interrupts import Interrupts
from train.run.progress import DIVERGED, Life
from train.run.recorder import Recorder, set_aside
from train.setup import Setup
from train.state import Params, TrainState
from train.step import NonFiniteError

CALL = 1.0  # seconds that a call of the program may take, so that signals are heard


class TrainingRun(contextlib.ExitStack):
    """A training in its work directory, which this process holds; a context manager.

    Attributes:
      step: The number of steps taken.
      feed: The name of the feed that gives the batches; '' before the first start. See `train.mesh.feeds`.
      stopping: Whether a signal has asked the run to stop.
    """

    def __init__(self, setup: Setup, directory: Path, resolved: dict[str, Any], checkpoints: Checkpoints):
        super().__init__()
        self._setup, self._directory, self._resolved = setup, directory, resolved
        self._checkpoints, self._evaluator = checkpoints, Evaluator(setup.task, setup.replicas)
        self._pending: Callable[[], None] | None = None  # reads the report of the last call
        self._calls, self._most = 0, 1
        self.step, self.feed, self.stopping = 0, "", False

    @contextlib.contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """Lets signals ask the run to save and stop; outside this context they end the program."""
        with Interrupts() as self._interrupts:
            yield

    def start(self, fresh: Callable[[], tuple[TrainState, str]]) -> TrainState:
        """Restores the newest checkpoint, or starts with what `fresh` makes: a state and a remark on it."""
        setup, total = self._setup, self._setup.timetable.total
        restored = self._checkpoints.restore(setup.replicas.abstract(setup.shapes))
        if restored:
            (self.step, state, progress), remarks = restored, []
        else:
            lost = set_aside(self._directory) if processes.is_first() else []
            self._checkpoints.clear()
            (state, remark), progress = fresh(), {}
            remarks = [*filter(None, [remark]), *lost]
        if self.step > total:
            raise UsageError(
                f"{self._directory} has been trained for {self.step} steps, but train.length is {total} steps; give "
                "at least as many, or another --workdir."
            )
        self.feed = progress.get("feed", "")
        self._lives = [Life(saved) for saved in progress.get("lives", [{}] * len(setup.replicas))]
        for life in self._lives:
            life.revive(setup.config.train.patience)
        if restored:
            word = "Continuing" if self.goes_on else "Already finished"
            remarks.append(f"{word} after step {self.step} of {self._directory}")
        state = self._mark_alive(state)
        self.recorder = self.enter_context(contextlib.closing(Recorder(self._directory, setup, self.step, progress)))
        self.recorder.say(*report.header(setup, state), *remarks)
        workdir.keep(self._directory, self._resolved, finished=not self.goes_on)
        return state

    @property
    def goes_on(self) -> bool:
        """Whether there is a step to take."""
        return not self.stopping and self.step < self._setup.timetable.total and self._any_alive

    @property
    def count(self) -> int:
        """The number of steps of the next call: up to the timetable's next edge, but not much more than a second's."""
        return min(self._setup.timetable.edge(self.step) - self.step, self._most)

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Leaves the time of compiling out of the time of training, and says that the step is compiled."""
        self._read()
        self.recorder.compiling()
        yield
        self.recorder.clock.skip()

    def took(self, reported: Any, index: np.ndarray) -> None:
        """Takes the report of a call, which is still being computed, and reads the one before.

        Args:
          reported: The report; see `train.mesh.program`.
          index: The indices of each step's examples, `(count, ..., B)`.
        """
        self._read()
        before, self.step, self._calls = self.step, self.step + len(index), self._calls + 1
        self._pending = lambda: self._account(before, len(index), jax.device_get(reported), index)
        self.stopping = self._interrupts.stop_after(self._calls)

    def pause(self, state: TrainState) -> TrainState:
        """Evaluates and saves where that is due or the run stops."""
        timetable = self._setup.timetable
        evaluates, saves = timetable.evaluates(self.step), timetable.saves(self.step)
        if not (self.stopping or evaluates or saves):
            return state
        self._read()
        improved = evaluates and self._any_alive and self._validate(state)
        state = self._stop_ended(state)
        if self.stopping or saves or not self._any_alive:
            self.save(state)
        elif improved:
            self._checkpoints.save(self.step, evaluated(state), None, self._best)
        self.recorder.clock.skip()
        return state

    def catch_up(self, state: TrainState) -> None:
        """Evaluates after the last step if that has not been done, as when `train.length` was lowered."""
        done = self.step == self._setup.timetable.total and self._any_alive
        if done and not any(line["step"] == self.step for line in self._validations()):
            self._validate(state)

    def save(self, state: TrainState) -> None:
        """Starts writing a checkpoint that the run can continue from."""
        self._read()
        progress = self.recorder.progress() | {"lives": [life.saved for life in self._lives], "feed": self.feed}
        self._checkpoints.save(self.step, state, progress, self._best)

    def end(self) -> bool:
        """Finishes writing while signals are still heard; tells whether the run has reached its end."""
        self._read()
        self.recorder.finish()
        self._checkpoints.wait()
        finished = self.step == self._setup.timetable.total or not self._any_alive
        if not finished:
            self.recorder.say(f"Stopped after step {self.step} and saved.")
        return finished

    def finish(self, state: TrainState) -> dict[str, Any]:
        """Measures test data at the last and the best step, and writes the report; returns `result.json`'s content."""
        last = self._write("test", self.step, state)
        params = self._best_params(state)
        best = last if params is None else self._measure("test", params)[0]
        if processes.is_first():
            measured = {"last": [one.examples for one in last], "best": [one.examples for one in best]}
            evaluations.write_examples(self._directory, measured)
        outcomes = [(life, a.metrics, b.metrics) for life, a, b in zip(self._lives, last, best, strict=True)]
        return report.write(self._directory, self._setup, self.recorder, self.step, outcomes)

    @property
    def _any_alive(self) -> bool:
        return any(not life.ended for life in self._lives)

    @property
    def _best(self) -> list[int]:
        return [life.best["step"] for life in self._lives]

    def _read(self) -> None:
        pending, self._pending = self._pending, None
        if pending:
            pending()

    def _account(self, before: int, count: int, reported: Any, index: np.ndarray) -> None:
        """Counts a call's steps, and writes the lines of the record that are due after the last of them."""
        replicas, clock = self._setup.replicas, self.recorder.clock
        alive = [replica for replica, life in enumerate(self._lives) if not life.ended]
        numbers, indices = replicas.split(reported, axis=1), replicas.split(index, axis=1)
        losses = [self._lives[r].add(before, count, numbers[r], indices[r]) for r in alive]
        clock.lap(index.size * jax.process_count() * self._setup.task.units_per_example, count)
        self._report_diverged([replica for replica in alive if self._lives[replica].ended])
        if jax.process_count() == 1:  # several would have to agree
            self._most = max(1, int(CALL / clock.pace)) if clock.pace > 0 else 1
        step, timetable = before + count, self._setup.timetable
        if step % timetable.epoch == 0:
            whole = [r for r in alive if self._lives[r].epoch["steps"] == timetable.epoch]
            self._log("epoch", step, {r: self._lives[r].epoch.take() for r in whole}, shown=False)
            for life in self._lives:
                life.epoch.clear()
        if timetable.logs(step):
            self._log("train", step, {r: self._lives[r].averages.take() for r in alive if not self._lives[r].ended})
        if last := [of_one[-1] for of_one in losses if of_one]:
            self.recorder.advance(step, float(np.mean(last)))

    def _log(self, split: str, step: int, means: dict[int, dict[str, float]], shown: bool = True) -> None:
        metrics = {replica: self._setup.task.metrics("train", of_one) for replica, of_one in means.items()}
        self.recorder.write(split, step, metrics, self.recorder.clock.per_second, shown)

    def _report_diverged(self, diverged: list[int]) -> None:
        """Reports replicas whose loss is no longer finite; raises NonFiniteError where none is left."""
        for replica in diverged:
            ended, name = self._lives[replica].ended, self._setup.replicas.name(replica)
            ended["examples"] = [example for share in processes.exchange(ended["examples"]) for example in share]
            sentence = (
                f"The loss{name} was {ended['loss']} and the gradient norm {ended['gradient_norm']} at step "
                f"{ended['step'] + 1}, on the training examples [{listed([str(one) for one in ended['examples']], 4)}]"
            )
            if self._any_alive:
                self.recorder.say(f"{sentence}; it ends here, and the others go on.")
                continue
            own = specs.of_files(str(self._setup.about["attention"])) if ended["step"] == 0 else []
            first = f"First, run `python -m attention.check {own[0]}`. " if own else ""
            raise NonFiniteError(
                f"{sentence}; {self._checkpoints.last_good()}. {first}In another --workdir, try a lower "
                "optimizer.learning_rate, a longer optimizer.warmup or optimizer.clip=1.0."
            )

    def _validate(self, state: TrainState) -> bool:
        """Measures validation data; tells whether any replica has a new best step."""
        measured = self._write("validation", self.step, state)
        patience, improved = self._setup.config.train.patience, False
        for life, found in zip(self._lives, measured, strict=True):
            if not life.ended:
                improved |= life.validated(self.step, self._value(found.metrics), patience)
        return improved

    def _stop_ended(self, state: TrainState) -> TrainState:
        """Stops in the state the replicas that have just run out of patience, and writes their last averages."""
        now = {r: life for r, life in enumerate(self._lives) if life.ended.get("step") == self.step}
        if not now:
            return state
        if not self._setup.timetable.logs(self.step):
            self._log("train", self.step, {replica: life.averages.take() for replica, life in now.items()})
        return self._mark_alive(state)

    def _mark_alive(self, state: TrainState) -> TrainState:
        """Marks in the state which replicas go on."""
        alive = np.array([not life.ended for life in self._lives]).reshape(self._setup.replicas.front)
        return state.replace(alive=jax.device_put(alive, state.alive.sharding))

    def _value(self, metrics: dict[str, float]) -> float:
        """Gives the deciding metric, negated where the lowest is best, so that a greater value is better."""
        task = self._setup.task
        return metrics[task.best] if task.best_is_highest else -metrics[task.best]

    def _write(self, split: str, step: int, state: TrainState) -> list[Measured]:
        measured, speed = self._measure(split, state.averaged())
        alive = {r: found.metrics for r, found in enumerate(measured) if split == "test" or not self._lives[r].ended}
        self.recorder.write(split, step, alive, speed)
        return measured

    def _measure(self, split: str, params: Params) -> tuple[list[Measured], float]:
        """Measures a split. A loss that is not finite ends its replica; if none is left, it raises NonFiniteError."""
        measured, speed = self._evaluator(split, params)
        for replica, (life, found) in enumerate(zip(self._lives, measured, strict=True)):
            loss = found.metrics["loss"]
            if life.ended or np.isfinite(loss):
                continue
            life.ended = {"why": DIVERGED, "step": self.step, "loss": str(loss), "split": split}
            if not self._any_alive:
                raise NonFiniteError(
                    f"The loss{self._setup.replicas.name(replica)} on {split} data was {loss} after step {self.step}; "
                    f"{self._checkpoints.last_good()}. In another --workdir, try a lower optimizer.learning_rate."
                )
        return measured, speed

    def _validations(self) -> results.Lines:
        """Reads the record's lines of validation data, in all processes."""
        record = files.read_record(self._directory) if processes.is_first() else []  # only it surely sees all lines
        return processes.of_first([line for line in record if line["split"] == "validation"])

    def _best_params(self, state: TrainState) -> Params | None:
        """Stacks each replica's parameters at its best step; None if the best step of all is the last.

        If the checkpoint of a best step is damaged, the best of the other steps replaces it.
        """
        params, replicas = state.averaged(), self._setup.replicas
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
        loaded, damaged = {self.step: params, 0: params}, set[int]()  # a replica that diverged early has no best step
        while missing := set(self._best) - loaded.keys():
            lost = min(missing)
            try:
                loaded[lost] = self._checkpoints.load_params(lost, abstract, averaged=bool(state.ema))
            except digest.DamagedError as error:
                damaged.add(lost)
                self._replace(lost, {*self._checkpoints.steps(), self.step} - damaged, error)
        if set(self._best) <= {self.step, 0}:
            return None
        return replicas.stack([replicas.one(loaded[best], r) for r, best in enumerate(self._best)])

    def _replace(self, lost: int, remaining: set[int], error: digest.DamagedError) -> None:
        """Replaces a lost best step by the best of the remaining steps."""
        lines = [line for line in self._validations() if line["step"] in remaining]
        for replica, life in enumerate(self._lives):
            if life.best["step"] != lost:
                continue
            values = [
                {"step": line["step"], "value": self._value(line)} for line in results.lines_of_replica(lines, replica)
            ]
            life.best = max(values, key=lambda value: (value["value"], value["step"]))
            self.recorder.say(
                f"{error} It was the best{self._setup.replicas.name(replica)}; the best of the others is step "
                f"{life.best['step']}."
            )
