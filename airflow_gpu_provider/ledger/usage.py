"""The ledger of a pool: when runs wanted nodes, when their pods worked, when machines came and were last seen.

Facts for a run's bill that its objects take with them: a pod is written down before it is deleted, a machine before it
is released. They are kept in Leases beside the demand, one for each run and one for each pool's machines, so that
tries, crashes and other processes find them; writing them again changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from airflow_gpu_provider.cluster.api.leases import delete_lease, list_leases, put_lease, read_lease, update
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, lease_manifest
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, Pod
from airflow_gpu_provider.ledger.packed import packed, unpacked
from airflow_gpu_provider.money.prices import ListPrices, amount_of
from airflow_gpu_provider.money.run_usage import Computed, MachineUse, RunUsage, Span
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.values import in_utc_if_naive
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.untrusted import NotParsed, read

log = logging.getLogger(__name__)

KEEP_FOR = timedelta(days=2)
"""How long the facts of a run that is over are kept, for a scale-down that is tried again and for runs beside it."""

_PREFIX = "airflow-gpu-provider/"

_MOST_GPUS = 1000  # of one pod


# -- writing it down -----------------------------------------------------------------------------------------


def record_begin(
    api: ApiClient,
    key: DemandKey,
    at: datetime,
    until: datetime,
    prices: ListPrices | None = None,
    max_cost: float | None = None,
) -> None:
    """Write down that a run wants nodes from now on, what they cost by the cloud's list, and what it may cost."""
    _amend_run(api, key, lambda usage: usage.begun(at, until, prices, max_cost))


def record_end(api: ApiClient, key: DemandKey, at: datetime) -> None:
    """Write down that a run wants nothing any more; where nothing is known of it, nothing is written."""
    if any(usage.key == key and usage.open for usage in read_runs(api, key.pool)):
        _amend_run(api, key, lambda usage: usage.ended(at))


def record_pods(
    api: ApiClient,
    pods: Iterable[Pod],
    now: datetime,
    *,
    computed: float | None = None,
    sampled: timedelta = timedelta(),
) -> None:
    """Write down when these pods ran; those that do not say whose they are, and those without GPUs, are left out.

    Args:
        computed: For which share of their time their GPUs computed. Default: unknown.
        sampled: How much of that time the samples stand for; no more of it is known.
    """
    for owner, done in _work(pods, now).items():
        _amend_run(api, owner, partial(_with_work, done, computed=computed, sampled=sampled))


def with_pods(runs: Iterable[RunUsage], pods: Iterable[Pod], now: datetime) -> tuple[RunUsage, ...]:
    """Return what is known of runs with what these pods have done until now, which is written down at their end."""
    known = {run.key: run for run in runs}
    for owner, done in _work(pods, now).items():
        known[owner] = _with_work(done, known.get(owner) or RunUsage.new(owner))
    return tuple(known.values())


_Work = tuple[Pod, str, Span]
"""A pod, the node that it ran on, and when."""


def _work(pods: Iterable[Pod], now: datetime) -> dict[DemandKey, list[_Work]]:
    work: dict[DemandKey, list[_Work]] = {}
    for pod in pods:
        span = pod.ran(now)
        if pod.owner is None or pod.node is None or not pod.gpus or span is None:
            continue
        work.setdefault(pod.owner, []).append((pod, pod.node, span))
    return work


def _with_work(
    done: Iterable[_Work], usage: RunUsage, *, computed: float | None = None, sampled: timedelta = timedelta()
) -> RunUsage:
    for pod, node, span in done:
        usage = usage.with_work(node, span)
        if computed is not None:
            of_pod = Computed.of_samples(node, span, pod.gpus, computed, sampled=sampled)
            usage = replace(usage, computed={**usage.computed, pod.uid: of_pod})
    return usage


def record_machines(api: ApiClient, pool_name: str, machines: Iterable[MachineUse]) -> None:
    seen = {machine.id: machine for machine in machines}
    if not seen:
        return

    def amend(notes: dict[str, str]) -> dict[str, str]:
        known = _machines(pool_name, notes)
        oldest = max(each.seen_until for each in seen.values()) - KEEP_FOR
        merged = {each.id: known[each.id].merged(each) if each.id in known else each for each in seen.values()}
        kept = {id_: each for id_, each in {**known, **merged}.items() if each.seen_until > oldest}
        return {f"{_PREFIX}machines": packed([_machine_to_json(each) for each in kept.values()])}

    _amend(api, f"machines-{pool_name}", "machines", {POOL_LABEL: pool_name}, amend)


def _amend_run(api: ApiClient, key: DemandKey, change: Callable[[RunUsage], RunUsage]) -> None:
    def amend(notes: dict[str, str]) -> dict[str, str]:
        return _run_to_notes(change(_run(key, notes)))

    _amend(api, f"usage-{key.hash}", "usage", {POOL_LABEL: key.pool, RUN_LABEL: key.hash}, amend)


def _amend(
    api: ApiClient, name: str, kind: str, labels: Mapping[str, str], change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    """Read a Lease's annotations and write what `change` makes of them, again where they were written meanwhile."""

    def write(before: dict[str, Any] | None) -> None:
        notes = dict((before or {}).get("metadata", {}).get("annotations") or {})
        after = change(notes)
        if after == notes:
            return
        put_lease(api, lease_manifest(name, kind, labels=labels, notes=after, spec={}), before)

    update(lambda: read_lease(api, name), write)


def delete_usage(api: ApiClient, pool_name: str) -> None:
    """Delete all that is written down of a pool; it is gone."""
    names = [f"usage-{usage.key.hash}" for usage in read_runs(api, pool_name)]
    for name in (*names, f"machines-{pool_name}"):
        delete_lease(api, name)


def delete_old_usage(api: ApiClient, pool_name: str, before: datetime) -> None:
    """Delete the facts of runs that ended before that time."""
    for usage in read_runs(api, pool_name):
        if not usage.wanted or usage.wanted[-1][1] < before:
            delete_lease(api, f"usage-{usage.key.hash}")


# -- reading it ----------------------------------------------------------------------------------------------


def read_runs(api: ApiClient, pool_name: str | None) -> tuple[RunUsage, ...]:
    """Return what is known of the runs that used a pool lately; None for all pools of the cluster."""
    found = list_leases(api, "usage", pool_name)
    runs = []
    for raw in found:
        try:
            key = read(raw, DemandKey.parse)
        except NotParsed:
            log.warning(
                "Lease %s/%s does not name its run, and is left out.", DEMAND_NAMESPACE, raw["metadata"]["name"]
            )
            continue
        runs.append(_run(key, raw["metadata"]["annotations"]))
    return tuple(runs)


def read_machines(api: ApiClient, pool_name: str) -> tuple[MachineUse, ...]:
    raw = read_lease(api, f"machines-{pool_name}")
    return tuple(_machines(pool_name, raw["metadata"].get("annotations") or {}).values()) if raw else ()


def _run(key: DemandKey, notes: Mapping[str, str]) -> RunUsage:
    """Return what a Lease's annotations have on a run; what cannot be read counts as not known, and is logged."""
    try:
        return read(notes.get(f"{_PREFIX}usage", "{}"), partial(_run_of, key))
    except NotParsed as error:
        name = f"{DEMAND_NAMESPACE}/usage-{key.hash}"
        log.warning("Lease %s cannot be read (%s), so what %s used is not known.", name, error, key)
        return replace(RunUsage.new(key), is_lost=True)


def _run_of(key: DemandKey, text: str) -> RunUsage:
    record = unpacked(text)
    wanted = _spans(record.get("wanted", ()))
    return RunUsage(
        key=key,
        wanted=wanted,
        open=bool(wanted and record.get("open")),
        worked={node: _spans(spans) for node, spans in record.get("worked", {}).items()},
        computed={uid: _computed(*each) for uid, each in record.get("computed", {}).items()},
        prices=tuple(map(ListPrices.parse, record.get("prices", ()))),
        max_cost=amount_of(record["max_cost"]) if "max_cost" in record else None,
        is_lost=bool(record.get("lost")),
    )


def _run_to_notes(usage: RunUsage) -> dict[str, str]:
    record: dict[str, Any] = {
        "wanted": [[format_time(at) for at in span] for span in usage.wanted],
        "open": usage.open,
        "worked": {node: [[format_time(at) for at in span] for span in spans] for node, spans in usage.worked.items()},
    }
    if usage.prices:
        record["prices"] = [prices.dump() for prices in usage.prices]
    if usage.max_cost is not None:
        record["max_cost"] = usage.max_cost
    if usage.is_lost:
        record["lost"] = True
    if usage.computed:
        pods = usage.computed.items()
        record["computed"] = {uid: [pod.node, *map(format_time, pod.span), pod.gpus, pod.share] for uid, pod in pods}
    return {**usage.key.annotations, f"{_PREFIX}usage": packed(record)}


def _computed(node: str, start: str, end: str, gpus: int, share: float) -> Computed:
    if not 0 <= share <= 1 or gpus not in range(_MOST_GPUS):
        raise ValueError(f"{share} is no share of {gpus} GPUs")
    return Computed(node=node, span=_spans([(start, end)])[0], gpus=gpus, share=share)


def _spans(raw: Iterable[Any]) -> tuple[Span, ...]:
    found = msgspec.convert(raw, tuple[Span, ...])
    return tuple((in_utc_if_naive(start), in_utc_if_naive(end)) for start, end in found)


def _machines(pool_name: str, notes: Mapping[str, str]) -> dict[str, MachineUse]:
    """Return what a Lease's annotations have on machines; what cannot be read counts as not known, and is logged."""
    try:
        return read(notes.get(f"{_PREFIX}machines", "[]"), _machines_of)
    except NotParsed as error:
        name = f"{DEMAND_NAMESPACE}/machines-{pool_name}"
        log.warning("Lease %s cannot be read (%s), so its machines are not known.", name, error)
        return {}


def _machines_of(text: str) -> dict[str, MachineUse]:
    found = msgspec.convert(unpacked(text), list[MachineUse])
    return {machine.id: _in_utc(machine) for machine in found}


def _in_utc(machine: MachineUse) -> MachineUse:
    usable_at = in_utc_if_naive(machine.usable_at) if machine.usable_at else None
    since, until = in_utc_if_naive(machine.launched_at), in_utc_if_naive(machine.seen_until)
    return replace(machine, launched_at=since, usable_at=usable_at, seen_until=until)


def _machine_to_json(machine: MachineUse) -> dict[str, Any]:
    return {name: format_time(at) if isinstance(at, datetime) else at for name, at in asdict(machine).items()}
