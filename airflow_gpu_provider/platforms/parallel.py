"""Several calls to a cloud at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PARALLEL_CALLS = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call a function for each item, several at a time; results in the items' order, the first error raised."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(max_workers=PARALLEL_CALLS, thread_name_prefix="cloud") as threads:
        return list(threads.map(function, items))
