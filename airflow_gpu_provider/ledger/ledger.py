"""Ledger: what is recorded about a pool for its runs' bills. Its failures never fail a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.base import Group, MachineLife, Platform, Report
from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.api.nodes import list_nodes
from airflow_gpu_provider.cluster.api.pods import list_pods_on
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.ledger import usage
from airflow_gpu_provider.money.bill import Bill, bill, shares
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage, Span, union
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey


class Ledger:
    """The ledger of one pool, kept in its cluster.

    Args:
        taken: Returns which of the pool's groups are another pool's at that time.
    """

    def __init__(
        self,
        api: ApiClient,
        pool: GpuPool,
        report: Report,
        *,
        taken: Callable[[Iterable[Group], datetime], Collection[str]],
    ) -> None:
        self._api = api
        self._pool = pool
        self._report = report
        self._taken = taken

    def begin(
        self,
        key: DemandKey,
        at: datetime,
        until: datetime,
        prices: ListPrices | None = None,
        max_cost: float | None = None,
    ) -> None:
        """Record that a run wants nodes, their list prices, its limit; delete the facts of runs that ended long ago."""
        self._quietly(lambda: usage.record_begin(self._api, key, at, until, prices, max_cost))
        self._quietly(lambda: usage.delete_old_usage(self._api, key.pool, at - usage.KEEP_FOR))

    def end(self, key: DemandKey, at: datetime) -> None:
        self._quietly(lambda: usage.record_end(self._api, key, at))

    def pods(self, pods: Iterable[Pod], now: datetime) -> None:
        """Record when pods ran; before they are deleted."""
        self._quietly(lambda: usage.record_pods(self._api, pods, now))

    def machines(self, groups: Iterable[Group], nodes: Iterable[Node], now: datetime) -> None:
        """Record the pool's machines as they are now; before any is released."""
        self._quietly(lambda: usage.record_machines(self._api, self._pool.name, machine_uses(groups, nodes, now)))

    def knows(self, key: DemandKey) -> bool:
        """Return whether anything is recorded of a run; without that it has cost nothing yet."""
        return any(run.key == key for run in usage.read_runs(self._api, self._pool.name))

    def bill(
        self,
        key: DemandKey,
        platform: Platform,
        now: datetime,
        *,
        seen: tuple[Group, ...] | None = None,
        release_began: datetime | None = None,
    ) -> Bill:
        """Return what a run's nodes did and cost, by the cloud's times of their launch and termination.

        If the cloud does not say (a permission is missing), the bill has at least what the snapshots saw.

        Args:
            seen: The pool's groups, where they have just been read. Default: they are read.
            release_began: When the run's scale-down began; None if unknown.
        """
        nodes = list_nodes(self._api, self._pool.node_selector)
        # Above all, other runs' pods that still run, whose times are not recorded yet.
        runs = usage.with_pods(usage.read_runs(self._api, self._pool.name), list_pods_on(self._api, nodes), now)
        known = usage.read_machines(self._api, self._pool.name)
        wanted = [span for run in runs if run.key == key for span in run.wanted]
        since = min((start for start, _ in wanted), default=now)
        try:
            groups, lives = self._read_cloud(platform, seen, known, since, now)
            at_least = ""
        except GpuError as error:
            groups, lives = (), None
            at_least = f"when machines were launched and terminated could not be read ({error})"
        markets = {group.name: group.candidate.market for group in groups}
        machines = machines_to_bill(known, lives or (), runs, since=since, now=now, markets=markets)
        types = {group.name: group.candidate.instance_type for group in groups}
        machines = tuple(
            replace(each, instance_type=each.instance_type or types.get(each.group, "")) for each in machines
        )
        if not at_least:
            until = max((end for _, end in wanted), default=now)
            by_cloud = {life.id for life in lives or ()}
            gone = [
                each.node or each.id
                for each in machines
                if each.id not in by_cloud and since < each.seen_until < until and shares(each, runs).get(key)
            ]
            if gone:
                at_least = f"the end of {', '.join(gone)} is not known; it counts until it was last seen"
        return bill(self._pool, key, runs, machines, at_least=at_least, release_began=release_began)

    def _read_cloud(
        self,
        platform: Platform,
        seen: tuple[Group, ...] | None,
        known: Iterable[MachineUse],
        since: datetime,
        now: datetime,
    ) -> tuple[tuple[Group, ...], tuple[MachineLife, ...] | None]:
        """Return the pool's groups, and when their machines ran; None without a cloud that knows."""
        groups = platform.observe() if seen is None else seen
        taken = self._taken(groups, now)
        in_use = {each.group for each in known}
        own = tuple(group for group in groups if group.name in in_use or group.name not in taken)
        # Of groups that were deleted since: those of earlier runs do not matter.
        lately = [each.id for each in known if each.seen_until >= since]
        return own, platform.lives(own, since, known=lately)

    def _quietly(self, write: Callable[[], None]) -> None:
        quietly(write, self._report)


def quietly(write: Callable[[], None], report: Report) -> None:
    """Record something; an error is only logged: a bill that is too low is no reason for a task to fail."""
    try:
        write()
    except GpuError as error:
        report(f"the reported cost of nodes will be too low: their use could not be recorded ({error})")


def record_pods(
    connect: Callable[[], ApiClient],
    pods: Iterable[Mapping[str, Any]],
    report: Report,
    *,
    now: Callable[[], datetime] | None = None,
    computed: float | None = None,
    sampled: timedelta = timedelta(),
) -> None:
    """Record when pods ran, and what share of the time their GPUs computed, for their runs' bills; see `quietly`.

    Args:
        pods: As JSON, as they were last seen; what a delete that completes at once returns in their place is left out.
        now: Returns the cluster's time. Default: it is asked for.
        computed: The share, 0 to 1, of the time that was sampled. Default: unknown.
        sampled: How much of the time was.
    """
    there = [Pod.parse(dict(pod)) for pod in pods if "phase" in (pod.get("status") or {})]

    def write() -> None:
        api = connect()
        at = now() if now else ServerClock(api).now()
        usage.record_pods(api, there, at, computed=computed, sampled=sampled)

    if there:
        quietly(write, report)


def machine_uses(groups: Iterable[Group], nodes: Iterable[Node], now: datetime) -> tuple[MachineUse, ...]:
    """Return what is seen of the machines that run."""
    by_machine = {node.machine: node for node in nodes}
    found = []
    for group in groups:
        for machine in (each for each in group.machines if each.drains or each.state in ("pending", "running")):
            node = by_machine.get(machine.id)
            launched_at = machine.launched_at or (node.created_at if node else now)
            found.append(
                MachineUse(
                    id=machine.id,
                    node=node.name if node else "",
                    group=group.name,
                    market=machine.market or group.candidate.market,
                    instance_type=(node.instance_type if node else "") or group.candidate.instance_type,
                    launched_at=launched_at,
                    usable_at=node.ready_changed_at if node and node.ready else None,
                    seen_until=now,
                )
            )
    return tuple(found)


def machines_to_bill(
    seen: Iterable[MachineUse],
    lives: Iterable[MachineLife],
    runs: Sequence[RunUsage],
    *,
    since: datetime,
    now: datetime,
    markets: Mapping[str, str],
) -> tuple[MachineUse, ...]:
    """Return a pool's machines with their times, from the cloud's records, otherwise from snapshots and pods.

    The cloud's records come first: a machine that is lost between two snapshots, even before its node joined, ran
    nevertheless. If the cloud has no record, or no longer has one, a machine ran from when it was first seen to when it
    was last seen or its last pod ended.

    Args:
        lives: The cloud's records; empty if there is no cloud, or it does not answer.
        since: When the bill's run first wanted nodes; earlier times do not matter.
        now: The time: a running machine that was in no snapshot has run until now.
    """
    looks = {each.id: each for each in seen}
    work = _work(runs)
    last_wanted = max((end for run in runs for _, end in run.wanted), default=now)
    found = []
    for life in lives:
        look = looks.get(life.id)
        # A machine launched after the last demand, and in no snapshot, is another pool's: pools share external groups.
        if look is not None or life.launched_at is None or life.launched_at < last_wanted:
            found.append(_lived(life, look, since=since, now=now, market=markets.get(life.group, "")))
    by_cloud = {each.id for each in found}
    rest = [look for look in looks.values() if look.id not in by_cloud]
    found += _until_their_last_pods(rest, work, taken={each.node for each in found})
    named, unknown = _with_nodes(found, work)
    found = named if by_cloud else [*named, *unknown]
    return tuple(_usable(each, work.get(each.node, ())) for each in found)


def _until_their_last_pods(
    looks: Iterable[MachineUse], work: Mapping[str, Sequence[Span]], *, taken: Collection[str]
) -> list[MachineUse]:
    """Return the machines for as long as pods ran there; a reused node name makes its pods indistinguishable.

    Args:
        taken: Names of nodes of other machines.
    """
    looks = tuple(looks)
    names = Counter([*(look.node for look in looks), *taken])
    found = []
    for look in looks:
        ends = [end for _, end in work.get(look.node, ()) if names[look.node] == 1]
        found.append(replace(look, seen_until=max(look.seen_until, *ends)) if ends else look)
    return found


def _lived(life: MachineLife, look: MachineUse | None, *, since: datetime, now: datetime, market: str) -> MachineUse:
    known = look or MachineUse(id=life.id, launched_at=since, seen_until=now)
    start = life.launched_at or known.launched_at
    last_seen = known.seen_until if known.seen_until > start else now  # it may be another machine with that name
    end = max(start, life.ended_at or last_seen)
    usable_at = known.usable_at if known.usable_at and start <= known.usable_at <= end else None
    return MachineUse(
        id=life.id,
        node=life.node or known.node,
        group=life.group or known.group,
        market=market or known.market,
        instance_type=known.instance_type,
        launched_at=start,
        usable_at=usable_at,
        seen_until=end,
    )


def _work(runs: Iterable[RunUsage]) -> dict[str, tuple[Span, ...]]:
    found: dict[str, tuple[Span, ...]] = {}
    for run in runs:
        for node, spans in run.worked.items():
            found[node] = union((*found.get(node, ()), *spans))
    return found


def _with_nodes(
    machines: Iterable[MachineUse], work: Mapping[str, Sequence[Span]]
) -> tuple[list[MachineUse], list[MachineUse]]:
    """Assign each pod's time to a machine: return the machines with their nodes, and those known only from pods.

    A node that was in no snapshot left no machine name: it belonged to a machine without a node that ran then.
    """
    found = sorted(machines, key=lambda each: (each.launched_at, each.id))
    unknown: dict[str, MachineUse] = {}
    pods = sorted((span, node) for node, spans in work.items() for span in spans)
    for span, node in pods:
        if any(each.node == node and _ran(each, span) for each in found):
            continue
        nameless = [at for at, each in enumerate(found) if not each.node and _ran(each, span)]
        if nameless:
            found[nameless[-1]] = replace(found[nameless[-1]], node=node)
        else:
            seen = MachineUse(id=node, node=node, launched_at=span[0], seen_until=span[1])
            unknown[node] = unknown[node].merged(seen) if node in unknown else seen
    return found, list(unknown.values())


def _ran(machine: MachineUse, span: Span) -> bool:
    """Return True if the machine ran while a pod did."""
    start, end = span
    return machine.launched_at < end and start < machine.seen_until


def _usable(machine: MachineUse, work: Sequence[Span]) -> MachineUse:
    """Return the machine, usable when its first pod ran at the latest."""
    starts = [start for start, end in work if _ran(machine, (start, end))]
    first = max(machine.launched_at, min(starts)) if starts else None
    known = [at for at in (machine.usable_at, first) if at]
    return replace(machine, usable_at=min(known, default=None))
