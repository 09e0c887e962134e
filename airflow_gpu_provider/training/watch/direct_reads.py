"""DirectReads: asks the API server itself for an object that a watch does not show.

A watch by labels says of an object that lost its label what it says of one that was deleted, and nothing of it after
that; and a list says nothing of what came and went before it. Only a GET tells what is so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.cluster.informer import Feed
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.errors import GpuError

AGAIN = timedelta(seconds=60)
"""How long an object that was found is believed to be there while no watch shows it."""

AFTER_FAILURE = timedelta(seconds=5)


@dataclass(frozen=True)
class Answer:
    """What the API server said of an object; `raw` is None where it is gone."""

    raw: Json | None


class DirectReads:
    """What was asked about the objects that one wait's watches do not show.

    Attributes:
        failures: Why an object could not be asked for when it last was, by its path.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._due: dict[str, datetime] = {}
        self.failures: dict[str, GpuError] = {}

    async def get(self, path: str, uid: str, now: datetime) -> Answer | None:
        """Ask for the object with this path and uid; None where that failed, or was done a short while ago."""
        if path in self._due and now < self._due[path]:
            return None
        try:
            raw = await self._feed.api.get(path)
        except GpuError as error:
            self.failures[path] = error
            self._due[path] = now + AFTER_FAILURE
            return None
        self.failures.pop(path, None)
        self._due[path] = now + AGAIN
        return Answer(raw if raw is not None and raw["metadata"]["uid"] == uid else None)

    def forget(self, path: str) -> None:
        """Drop what was found: there is news of this object, and the next `ask` is done."""
        self._due.pop(path, None)
        self.failures.pop(path, None)

    def forget_all(self) -> None:
        """Drop all that was found: the watches list all objects again."""
        self._due.clear()
        self.failures.clear()
