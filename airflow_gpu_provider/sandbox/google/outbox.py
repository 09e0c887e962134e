"""What happened under Google Cloud's lock and is told to the sandbox after it, in the order in which it happened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from airflow_gpu_provider.sandbox.google.interface import CloudEvents, Instance

log = logging.getLogger(__name__)


class Outbox:
    """Takes `CloudEvents` and keeps them until they may be delivered."""

    def __init__(self, events: CloudEvents) -> None:
        self._events = events
        self._waiting: list[Callable[[], None]] = []

    def instance_launched(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.instance_launched(instance))

    def drain_requested(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.drain_requested(instance))

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        self._waiting.append(lambda: self._events.spot_notice(instance, at=at))

    def instance_terminated(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.instance_terminated(instance))

    def take(self) -> list[Callable[[], None]]:
        """Everything that waits, to be called without the lock."""
        waiting, self._waiting = self._waiting, []
        return waiting


def deliver(events: list[Callable[[], None]]) -> None:
    """Call each. One that raises is logged: Google Cloud goes on whatever its listener does."""
    for event in events:
        try:
            event()
        except Exception:
            log.exception("the sandbox failed to handle an event of Google Cloud's")
