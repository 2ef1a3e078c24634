"""Signals: SIGTERM and SIGINT ask the loop to save and stop; a second signal ends the process at once."""

import contextlib
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

from train import cli

STDERR, SOON = 2, b"\nStopping after this step, to save. Ctrl-C again ends at once.\n"


class Interrupts(contextlib.ExitStack):
    """A context manager that handles signals; its `stop_after` says when to save and stop.

    Any of several processes may get the signal. They agree through JAX's preemption service, which has installed a
    handler of SIGTERM in C, invisible to Python; our handler calls it, for SIGINT too.
    """

    def __init__(self):
        super().__init__()
        self._requested = False
        self._notice: Callable[[int], None] | None = None

    def __enter__(self) -> "Interrupts":
        if jax.process_count() > 1 and threading.current_thread() is threading.main_thread():
            self._notice = _handler_in_c(signal.SIGTERM)
        self.enter_context(cli.signals_handled(self._handle))
        return self

    def stop_after(self, step: int) -> bool:
        """Tells whether to save and stop after this step; every process must call it once after every step.

        Several processes stop at the same step, the first that none of them has passed. A signal that comes after the
        call counts at the next step.
        """
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._requested

    def _handle(self, number: int, before: Mapping[int, Any]) -> None:
        self._requested = True
        if number == signal.SIGINT and os.isatty(STDERR):
            os.write(STDERR, SOON)  # unlike `print`, it may interrupt another `print`
        for known, handler in before.items():
            signal.signal(known, handler)
        if self._notice:
            self._notice(signal.SIGTERM)


@functools.cache
def _handler_in_c(number: int) -> Callable[[int], None] | None:
    """Removes a signal's C handler from the process and returns it; None if there was none."""
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    address = libc.signal(number, int(signal.SIG_DFL))
    ignored = (None, int(signal.SIG_DFL), int(signal.SIG_IGN))
    return None if address in ignored else ctypes.CFUNCTYPE(None, ctypes.c_int)(address)
