"""Eventual consistency: a read of a cloud's API may see its state as it was a moment ago, as drawn from a seed.

Which calls are read this way, and according to which documents, is stated by its users: `aws.replicas`,
`google.replicas`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")

FRESH = 0.5
"""The share of fully up-to-date reads; no document states one."""


class Staleness:
    """How old the state is that each read sees. Not thread-safe: a cloud calls it under its lock.

    Reads are independent of each other: one that sees a change may be followed by one that does not, as EC2's
    documents warn of ("add wait time ... even if a Describe command returns an accurate response").

    Args:
        seed: The same seed gives the same series of ages to each operation.
        longest: In seconds; 0 makes every read see everything.
    """

    def __init__(self, *, seed: int, longest: float) -> None:
        if not 0 <= longest < float("inf"):
            raise ValueError(f"the age of what is read is a number of seconds, at least 0; not {longest!r}")
        self.longest = longest
        self._seed = seed
        self._draws: dict[str, random.Random] = {}

    def age(self, operation: str) -> float:
        """Seconds, from 0 to `longest`, for the next read by this operation."""
        if not self.longest:
            return 0.0
        draws = self._draws.setdefault(operation, random.Random(f"{self._seed}:{operation}"))
        is_fresh, age = draws.random() < FRESH, draws.uniform(0.0, self.longest)
        return 0.0 if is_fresh else age


class History(Generic[_K, _T]):
    """What things there were, and how they were, at each moment of the last seconds.

    Args:
        mark: Differs where a thing has changed; called often.
        copy: The thing as it is now, untouched by later changes; called where the mark differs.
        longest: How many seconds back `at` is asked for.
    """

    def __init__(self, *, mark: Callable[[_T], Hashable], copy: Callable[[_T], _T], longest: float) -> None:
        self._mark = mark
        self._copy = copy
        self._longest = longest
        self._marks: dict[_K, Hashable] = {}
        self._times: list[float] = []
        self._versions: list[dict[_K, _T]] = []

    def record(self, things: Mapping[_K, _T], now: float) -> None:
        """Take the state at `now`, which is never before that of an earlier call."""
        marks = {key: self._mark(thing) for key, thing in things.items()}
        if marks == self._marks and list(marks) == list(self._marks) and self._versions:
            return
        before = self._versions[-1] if self._versions else {}
        version = {
            key: before[key] if key in before and self._marks.get(key) == marks[key] else self._copy(thing)
            for key, thing in things.items()
        }
        self._marks = marks
        self._times.append(now)
        self._versions.append(version)
        self._forget(now - self._longest)

    def at(self, then: float) -> dict[_K, _T]:
        """Return the state at that time, or the oldest that is known; empty before the first."""
        if not self._versions:
            return {}
        return dict(self._versions[max(0, bisect_right(self._times, then) - 1)])

    def _forget(self, then: float) -> None:
        """Keep the version that was current at that time, and all later ones."""
        first = max(0, bisect_right(self._times, then) - 1)
        del self._times[:first], self._versions[:first]
