"""When a pool's machines ran, as a bill counts it: by the cloud's word, and by looks and pods where it has none. Pure.

The cloud's word comes first: a machine that is lost between two looks, before its node joined even, ran all the same.
Where the cloud does not tell, or no longer, a machine ran from when it was seen first to when it was seen last or its
last pod ended.
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
        seen: What looks have written down.
        told: What the cloud says; empty where there is no cloud, or it does not answer.
        runs: What is known of the runs that used the pool.
        since: What was before does not matter: when the run of the bill wanted nodes first.
        now: The time: what runs, and was in no look, has run until now.
        markets: By group.
    """
    looks = {each.id: each for each in seen}
    work = _work(runs)
    last_wanted = max((end for run in runs for _, end in run.wanted), default=now)
    found = []
    for life in told:
        look = looks.get(life.id)
        # What was launched after the last demand, and was in no look, is another pool's: groups of others have turns.
        if look is not None or life.launched_at is None or life.launched_at < last_wanted:
            found.append(_lived(life, look, since=since, now=now, market=markets.get(life.group, "")))
    by_cloud = {each.id for each in found}
    rest = [look for look in looks.values() if look.id not in by_cloud]
    # A cloud that tells of machines tells of all that matter: the rest ended before.
    found += rest if by_cloud else _until_their_last_pods(rest, work)
    named, unknown = _with_nodes(found, work)
    found = named if by_cloud else [*named, *unknown]
    return tuple(_usable(each, work.get(each.node, ())) for each in found)


def _until_their_last_pods(looks: Iterable[MachineUse], work: Mapping[str, Sequence[Span]]) -> list[MachineUse]:
    """Return the machines as long as pods ran there; a node's name may come again, and then a pod is not told apart."""
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
    last_seen = known.seen_until if known.seen_until > start else now  # a look may have seen another of that name
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
    """Give each pod's time a machine: return the machines with their nodes, and those that only pods tell of.

    A node that nobody looked at took its machine's name with it: it was that of one without a node that ran then.
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
