"""What a cloud reports to the sandbox about its instances, and the outbox that waits for the cloud's lock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Generic, Protocol, TypeVar

Instance = TypeVar("Instance")
Told = TypeVar("Told", contravariant=True)


class CloudEvents(Protocol[Told]):
    """Called one after another from a step of the cloud, so each must return fast."""

    def instance_launched(self, instance: Told) -> None:
        """The instance is running; its Node may join once it has booted: then call the cloud's `node_joined`."""

    def instance_relabelled(self, before: Told, after: Told) -> None:
        """The cloud changed the labels or taints of the instance's group, including its Node's."""

    def drain_requested(self, instance: Told) -> None:
        """A managed group is about to end it: cordon and evict, then call the cloud's `complete_drain`."""

    def rebalance_recommended(self, instance: Told) -> None:
        """The spot instance is at elevated risk of being reclaimed soon."""

    def spot_notice(self, instance: Told, *, at: datetime) -> None:
        """The instance will be reclaimed at this time (UTC)."""

    def instance_terminated(self, instance: Told) -> None:
        """The instance is gone. Called once for each `instance_launched`."""


class Outbox(Generic[Instance]):
    """What happened under a cloud's lock, in that order: never a callback while the lock is held."""

    def __init__(self, events: CloudEvents[Instance]) -> None:
        self._events = events
        self._waiting: list[Callable[[], None]] = []

    def instance_launched(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.instance_launched(instance))

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        self._waiting.append(lambda: self._events.instance_relabelled(before, after))

    def drain_requested(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.drain_requested(instance))

    def rebalance_recommended(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.rebalance_recommended(instance))

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        self._waiting.append(lambda: self._events.spot_notice(instance, at=at))

    def instance_terminated(self, instance: Instance) -> None:
        self._waiting.append(lambda: self._events.instance_terminated(instance))

    def take(self) -> list[Callable[[], None]]:
        """Everything pending, to be called without the lock."""
        waiting, self._waiting = self._waiting, []
        return waiting


def deliver(events: list[Callable[[], None]]) -> None:
    """Call each, whatever one before has raised. ExceptionGroup with all that was raised."""
    errors = []
    for event in events:
        try:
            event()
        except Exception as error:  # noqa: BLE001
            errors.append(error)
    if errors:
        raise ExceptionGroup("the sandbox failed to handle events of the cloud's", errors)
