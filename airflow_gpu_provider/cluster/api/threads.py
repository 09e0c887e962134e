"""Threads: where an event loop's blocking calls run, and several requests at a time.

An event loop looks names up in its default executor, of a handful of threads. Calls that wait there for a pool's lock
would keep the triggerer's every other trigger from reaching any host; they have threads of their own.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from airflow_gpu_provider.errors import GpuError

THREADS = 32
"""How many blocking calls of a process run at a time; more of them wait for their turn."""

AT_ONCE = 8
"""How many requests one call makes at a time."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


async def in_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function that blocks, as `asyncio.to_thread` does, in a thread that nobody else's work waits for."""
    context = contextvars.copy_context()

    def call() -> _R:
        try:
            return context.run(function, *args, **kwargs)
        except StopIteration as error:  # no Future takes one: it would be awaited for ever
            raise RuntimeError(f"{function} raised StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(_executor(), call)


def in_parallel(function: Callable[[_T], _R], items: Iterable[_T], *, at_once: int = AT_ONCE) -> list[_R]:
    """Call a function for each item, several at a time; results in the items' order, the first error raised."""
    items = list(items)
    if min(len(items), at_once) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="gpu-request") as threads:
        return list(threads.map(function, items))


def all_in_parallel(function: Callable[[_T], _R], items: Iterable[_T], *, at_once: int = AT_ONCE) -> list[_R]:
    """Do as `in_parallel`, for all items even where some fail; then the first GpuError is raised."""

    def outcome(item: _T) -> _R | GpuError:
        try:
            return function(item)
        except GpuError as error:
            return error

    results = []
    for each in in_parallel(outcome, items, at_once=at_once):
        if isinstance(each, GpuError):
            raise each
        results.append(each)
    return results


def batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Yield the items in their order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="gpu-pool")


os.register_at_fork(after_in_child=_executor.cache_clear)  # a child has none of its parent's threads
