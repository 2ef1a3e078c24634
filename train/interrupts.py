"""SIGTERM and SIGINT ask the loop to save and stop; asked twice, the process ends at once."""

import signal
from types import FrameType


class Interrupts:
    """A context manager; `requested` turns True when the process is asked to stop."""

    def __init__(self):
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread, as in some notebooks: their own handling stays
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for known, handler in self._before.items():
            signal.signal(known, handler)
