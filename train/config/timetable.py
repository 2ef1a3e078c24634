"""The timetable of a training: the config's durations in optimizer steps."""

import dataclasses

from train.config.durations import Duration
from train.config.schema import Config


@dataclasses.dataclass(frozen=True)
class Timetable:
    """The config's durations in optimizer steps; 0 means never."""

    total: int
    epoch: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    warmup: int
    uncut_warmup: int

    @classmethod
    def of(cls, config: Config, examples: int) -> "Timetable":
        """Makes the timetable of a config with `examples` examples in an epoch.

        A warm-up longer than the run is cut to a tenth of the run.
        """

        def steps(length: str) -> int:
            return Duration.parse(length, "length").steps(config.data.batch_size, examples)

        train, total, warmup = config.train, steps(config.train.length), steps(config.optimizer.warmup)
        return cls(
            total=total,
            epoch=steps("1 epoch"),
            log_every=steps(train.log_every),
            eval_every=steps(train.eval_every),
            checkpoint_every=steps(train.checkpoint_every),
            warmup=warmup if warmup <= total else max(total // 10, 1),
            uncut_warmup=warmup,
        )

    def logs(self, step: int) -> bool:
        """Tells whether training metrics are written after a step."""
        return self._due(self.log_every, step)

    def evaluates(self, step: int) -> bool:
        """Tells whether the validation data are evaluated after a step."""
        return self._due(self.eval_every, step)

    def saves(self, step: int) -> bool:
        """Tells whether a checkpoint is written after a step."""
        return self._due(self.checkpoint_every, step)

    def edge(self, step: int) -> int:
        """Finds the next step after which one of these is due or an epoch ends."""
        every = (self.log_every, self.eval_every, self.checkpoint_every, self.epoch)
        return min(self.total, *(step + period - step % period for period in every if period))

    def _due(self, every: int, step: int) -> bool:
        return step == self.total or (every > 0 and step % every == 0)
