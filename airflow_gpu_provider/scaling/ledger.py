"""Ledger: what is recorded about a pool for its runs' bills. Its failures never fail a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster import usage
from airflow_gpu_provider.cluster.demand import DemandKey, list_demand
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.usage import MachineUse
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.platforms.base import Group, MachineLife, Platform, Say
from airflow_gpu_provider.scaling.bill import Bill, bill, shares
from airflow_gpu_provider.scaling.group_claims import claimed
from airflow_gpu_provider.scaling.lives import machines_to_bill
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
        """Record that a run wants nodes; delete the facts of runs that ended long ago."""
        self._quietly(lambda: usage.record_begin(self._api, key, at, until))
        self._quietly(lambda: usage.delete_old_usage(self._api, key.pool, at - usage.KEEP_FOR))

    def end(self, key: DemandKey, at: datetime) -> None:
        """Record that a run no longer wants nodes."""
        self._quietly(lambda: usage.record_end(self._api, key, at))

    def pods(self, pods: Iterable[Pod], now: datetime) -> None:
        """Record when pods ran; before they are deleted."""
        self._quietly(lambda: usage.record_pods(self._api, pods, now))

    def machines(self, snapshot: PoolSnapshot) -> None:
        """Record the pool's machines; before any is released."""
        self._quietly(lambda: usage.record_machines(self._api, self._pool.name, machine_uses(snapshot)))

    def bill(self, key: DemandKey, platform: Platform, now: datetime) -> Bill:
        """Return what a run's nodes did and cost, by the cloud's times of their launch and termination.

        Where the cloud does not say (a permission is missing), it is at least what the snapshots saw.

        Raises:
            GpuError: The cluster did not say.
        """
        runs = usage.read_runs(self._api, self._pool.name)
        seen = usage.read_machines(self._api, self._pool.name)
        wanted = [span for run in runs if run.key == key for span in run.wanted]
        since = min((start for start, _ in wanted), default=now)
        try:
            groups, told = self._told(platform, seen, since, now)
            at_least = ""
        except GpuError as error:
            groups, told = (), None
            at_least = f"when machines were launched and terminated could not be read ({error})"
        markets = {group.name: group.candidate.market for group in groups}
        machines = machines_to_bill(seen, told or (), runs, since=since, now=now, markets=markets)
        if told is None and not at_least:
            until = max((end for _, end in wanted), default=now)
            gone = [
                each.node or each.id for each in machines if each.seen_until < until and shares(each, runs).get(key)
            ]
            if gone:
                at_least = f"the end of {', '.join(gone)} is not known; it counts until it was last seen"
        return bill(self._pool, key, runs, machines, at_least=at_least)

    def _told(
        self, platform: Platform, seen: Iterable[MachineUse], since: datetime, now: datetime
    ) -> tuple[tuple[Group, ...], tuple[MachineLife, ...] | None]:
        """Return the pool's groups, and when their machines ran; None where there is no cloud that knows."""
        groups = platform.observe()
        taken = claimed(self._pool, groups, list_demand(self._api), now) if self._pool.manage == "scale" else {}
        in_use = {each.group for each in seen}
        own = tuple(group for group in groups if group.name in in_use or group.name not in taken)
        return own, platform.lives(own, since, known=[each.id for each in seen])

    def _quietly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except GpuError as error:
            self._say(f"the reported cost of nodes will be too low: their use could not be recorded ({error})")


def machine_uses(snapshot: PoolSnapshot) -> tuple[MachineUse, ...]:
    """Return what a snapshot shows of the machines that are not terminating."""
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
