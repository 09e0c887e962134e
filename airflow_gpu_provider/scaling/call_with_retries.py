"""call_with_retries: a call that is tried again, in a worker, while its errors are tolerated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from airflow_gpu_provider.cluster.clock import Clock, SystemClock
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.patience import Patience
from airflow_gpu_provider.platforms.base import Say

_EVERY = 5.0  # seconds

T = TypeVar("T")


def call_with_retries(
    call: Callable[[], T], *, within: timedelta, say: Say, worked: bool = False, clock: Clock | None = None
) -> T:
    """Make a call that may be repeated, until it succeeds.

    Args:
        call: Raises a GpuError where it fails.
        within: For how long to try at most; how long each error is tolerated is part of its type.
        say: Takes lines for the task's log.
        worked: The same access has worked before (see `Patience`).
        clock: This machine's.

    Raises:
        GpuError: The call's last error.
    """
    clock = clock or SystemClock()
    patience = Patience(clock.now() + within, worked=worked)
    told = ""
    while True:
        try:
            return call()
        except GpuError as error:
            if not patience.bears(error, clock.now()):
                raise
            line = patience.in_words(error)
            if line != told:
                say(line)
            told = line
        clock.sleep(_EVERY)
