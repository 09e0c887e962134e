"""When a pool's machines ran, for the bill: by the cloud's records, else by what snapshots and pods show. Pure.

The cloud's records come first: a machine that is lost between two snapshots, even before its node joined, ran all the
same. Where the cloud has no record, or no longer, a machine ran from when it was first seen to when it was last seen or
its last pod ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.cluster.usage import MachineUse, RunUsage, Span, union
from airflow_gpu_provider.platforms.base import MachineLife


def machines_to_bill(
    seen: Iterable[MachineUse],
    told: Iterable[MachineLife],
    runs: Sequence[RunUsage],
    *,
    since: datetime,
    now: datetime,
    markets: Mapping[str, str],
) -> tuple[MachineUse, ...]:
    """Return the machines of a pool with their times.

    Args:
        seen: What snapshots have recorded.
        told: The cloud's records; empty where there is no cloud, or it does not answer.
        runs: What is known of the runs that used the pool.
        since: When the bill's run first wanted nodes; earlier times do not matter.
        now: The time: a running machine that was in no snapshot has run until now.
        markets: By group.
    """
    looks = {each.id: each for each in seen}
    work = _work(runs)
    last_wanted = max((end for run in runs for _, end in run.wanted), default=now)
    found = []
    for life in told:
        look = looks.get(life.id)
        # A machine launched after the last demand, and in no snapshot, is another pool's: pools share external groups.
        if look is not None or life.launched_at is None or life.launched_at < last_wanted:
            found.append(_lived(life, look, since=since, now=now, market=markets.get(life.group, "")))
    by_cloud = {each.id for each in found}
    rest = [look for look in looks.values() if look.id not in by_cloud]
    # A cloud that lists machines lists all that matter: the rest ended before.
    found += rest if by_cloud else _until_their_last_pods(rest, work)
    named, unknown = _with_nodes(found, work)
    found = named if by_cloud else [*named, *unknown]
    return tuple(_usable(each, work.get(each.node, ())) for each in found)


def _until_their_last_pods(looks: Iterable[MachineUse], work: Mapping[str, Sequence[Span]]) -> list[MachineUse]:
    """Return the machines for as long as pods ran there; a reused node name makes its pods indistinguishable."""
    looks = tuple(looks)
    names = Counter(look.node for look in looks)
    found = []
    for look in looks:
        ends = [end for _, end in work.get(look.node, ()) if names[look.node] == 1]
        found.append(replace(look, seen_until=max(look.seen_until, *ends)) if ends else look)
    return found


def _lived(life: MachineLife, look: MachineUse | None, *, since: datetime, now: datetime, market: str) -> MachineUse:
    known = look or MachineUse(id=life.id, launched_at=since, seen_until=now)
    start = life.launched_at or known.launched_at
    last_seen = known.seen_until if known.seen_until > start else now  # it may be another machine of that name
    end = max(start, life.ended_at or last_seen)
    usable_at = known.usable_at if known.usable_at and start <= known.usable_at <= end else None
    return MachineUse(
        id=life.id,
        node=life.node or known.node,
        group=life.group or known.group,
        market=market or known.market,
        launched_at=start,
        usable_at=usable_at,
        seen_until=end,
    )


def _work(runs: Iterable[RunUsage]) -> dict[str, tuple[Span, ...]]:
    """Return when pods of any runs ran, by node."""
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
