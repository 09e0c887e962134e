"""Ledger: what is written down of a pool for its runs' bills, and read again. Its failures never fail a night."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster import usage
from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.usage import MachineUse
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.platforms.base import Say
from airflow_gpu_provider.scaling.bill import Bill, bill
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.pools import GpuPool


class Ledger:
    """The ledger of one pool, kept in its cluster."""

    def __init__(self, api: ApiClient, pool: GpuPool, say: Say) -> None:
        self._api = api
        self._pool = pool
        self._say = say

    def begin(self, key: DemandKey, at: datetime, until: datetime) -> None:
        """Write down that a run wants nodes."""
        self._quietly(lambda: usage.note_begin(self._api, key, at, until))

    def end(self, key: DemandKey, at: datetime) -> None:
        """Write down that a run wants none any more."""
        self._quietly(lambda: usage.note_end(self._api, key, at))

    def pods(self, pods: Iterable[Pod], now: datetime) -> None:
        """Write down when pods ran; before they are deleted."""
        self._quietly(lambda: usage.note_pods(self._api, pods, now))

    def machines(self, snapshot: PoolSnapshot) -> None:
        """Write down the pool's machines; before any is released."""
        self._quietly(lambda: usage.note_machines(self._api, self._pool.name, machine_uses(snapshot)))

    def bill(self, key: DemandKey) -> Bill:
        """Return what a run's nodes did and cost.

        Raises:
            GpuError: The cluster did not say.
        """
        runs = usage.read_runs(self._api, self._pool.name)
        return bill(self._pool, key, runs, usage.read_machines(self._api, self._pool.name))

    def _quietly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except GpuError as error:
            self._say(f"what nodes cost will be told too low: it could not be written down ({error})")


def machine_uses(snapshot: PoolSnapshot) -> tuple[MachineUse, ...]:
    """Return what a snapshot tells of the machines that are not on their way out."""
    nodes = {node.machine: node for node in snapshot.nodes}
    found = []
    for group in snapshot.groups:
        for machine in group.live:
            node = nodes.get(machine.id)
            launched_at = machine.launched_at or (node.created_at if node else snapshot.now)
            found.append(
                MachineUse(
                    id=machine.id,
                    node=node.name if node else "",
                    group=group.name,
                    market=group.candidate.market,
                    launched_at=launched_at,
                    usable_at=node.ready_changed_at if node and node.ready else None,
                    seen_until=snapshot.now,
                )
            )
    return tuple(found)
