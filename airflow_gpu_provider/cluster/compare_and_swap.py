"""Compare-and-swap: a Kubernetes object is written as it was read, and read again where somebody else was first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from airflow_gpu_provider.cluster.api_errors import ObjectChanged

# A node's status is written every few seconds while it boots, and each write is a conflict.
_TRIES = 8
_PAUSE = wait_random(0.05, 0.4)  # seconds; random, for those who conflicted not to meet again

_R = TypeVar("_R")
_T = TypeVar("_T")


def update(
    read: Callable[[], _R],
    write: Callable[[_R], _T],
    *,
    known: _R | None = None,
) -> _T:
    """Write what follows from an object as it is now, and return what `write` returns.

    Args:
        read: Returns the object.
        write: Decides by what was read, and writes with its resourceVersion, or nothing; raises ObjectChanged where
            somebody else was first.
        known: The object as the caller has read it; the first try spares its own read.

    Raises:
        ObjectChanged: Somebody else was first each time; it is the last try's error.
    """
    first = [] if known is None else [known]
    is_conflict = retry_if_exception_type(ObjectChanged)
    retrying = Retrying(retry=is_conflict, stop=stop_after_attempt(_TRIES), wait=_PAUSE, reraise=True)
    return retrying(lambda: write(first.pop() if first else read()))
