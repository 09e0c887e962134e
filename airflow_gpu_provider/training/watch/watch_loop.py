"""watch: the loop that drives a wait for pods, for the trigger and for the blocking operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import watching
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.api.watched import pool_nodes
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import LOST, PermissionDenied
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.deadlines import extended_deadline
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait import pool_updates
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from airflow_gpu_provider.training.log.object_logs import Logs
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.gpu_use import Rank
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait
from airflow_gpu_provider.training.watch.gang_view import OneGang
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler
from airflow_gpu_provider.training.watch.kueue_queue import KueueQueue
from airflow_gpu_provider.training.watch.object_view import OneWorkload
from airflow_gpu_provider.training.watch.pod_view import OnePod
from airflow_gpu_provider.training.watch.view import OnPod, RunKind, See, View
from airflow_gpu_provider.untrusted import NotParsed, read


def cluster_access(pool: GpuPool) -> ClusterAccess:
    """Find the (rendered) pool's cluster; makes cloud calls, so call it in a thread if there is an event loop."""
    return platform_for(pool).cluster_access()


async def follow(
    kind: RunKind,
    api: AsyncApi,
    pool: GpuPool,
    logs: Logs,
    gpus: GpuSampler,
    log: Log,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    see: See | None = None,
) -> Progress:
    """Watch with the pods' logs and their GPU use, within the contexts of both; arguments and errors as for `watch`."""

    def on_pod(pod: PodState, raw: Json, rank: Rank) -> None:
        logs.follow(pod, raw, rank)
        gpus.follow(pod, raw, rank)

    watching = watch(
        kind,
        pool,
        owner=owner,
        narrator=narrator,
        open_access=open_access,
        on_pod=on_pod,
        silence=logs.silence,
        see=see,
    )
    progress = await gpus.beside(watching, logs.silence)
    await gpus.stop()
    if progress.extended_until is None:
        await kind.finish(api, progress, logs, log)
    return progress


_KINDS: Mapping[type[AttemptWait], Callable[..., RunKind]] = {
    PodWait: OnePod,
    GangWait: OneGang,
    WorkloadWait: OneWorkload,
}


def run_kind_of(wait: AttemptWait) -> RunKind:
    return _KINDS[type(wait)](wait)


def read_wait(kind: str, record: Json) -> AttemptWait:
    """Read the wait of a trigger's record or event: its `run_kind`, and itself."""
    return {each.run_kind: each for each in _KINDS}[kind].from_record(record)


async def watch(
    kind: RunKind,
    pool: GpuPool,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    on_pod: OnPod | None = None,
    silence: Callable[[], Silence | None] = lambda: None,
    see: See | None = None,
) -> Progress:
    """Wait for a pod, or an object and its pods, without polling; returns how the wait ended, errors included.

    At its deadline the run's demand is read once more: where it was extended, the wait is to begin again.

    While a pod has no node, the pool is kept at its size (see pool_updates).

    Args:
        kind: What is waited for.
        pool: The rendered spec.
        owner: Who writes the groups' spec, "<installation>/<dag>".
        narrator: Writes what is new to the task's log.
        open_access: Finds the cluster; called in a thread. Default: by the pool's platform.
        on_pod: Called with each state of a pod.
        silence: Returns for how long it has printed nothing.
        see: Takes the JSON of what has changed, its pods among it, before the wait does. Meanwhile the cluster is
            watched and logs are streamed, but no deadline is looked at.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    wait = kind.wait
    queue = KueueQueue(wait, pool)
    wants = {**kind.view_type.wants(wait), **queue.wants(), **pool_nodes(pool.node_selector)}
    open_access = open_access or partial(cluster_access, pool)
    async with watching(pool.cluster_identity, open_access, wants) as feed:
        view = kind.view_type(wait, pool, feed, on_pod, silence)
        try:
            while True:
                now = await feed.api.now()
                if now >= wait.deadline and (later := await _extended_until(wait, feed.api)):
                    return Progress(extended_until=later)
                await view.confirm(now)
                if see is not None:
                    await see(view.last_seen)
                progress, next_deadline = view.look(now)
                progress = replace(progress, lines=(*progress.lines, *wait.money_lines(now)))
                is_over = progress.done or progress.error is not None
                if is_over and not (view.has_settled(now) and await _is_believed(progress, view, now)):
                    progress, is_over = Progress(lines=progress.lines), False
                if is_over or view.tells(progress.lines, now):
                    narrator.log(now, *progress.lines)
                if isinstance(progress.error, LOST) or (progress.error is not None and view.end_together):
                    await in_thread(_note_use, view.last_seen, now, open_access, narrator)
                if is_over:
                    return progress
                if refusal := view.refusal(now):
                    return Progress(error=refusal)
                await _keep_pool(view, pool, owner)
                seconds = (wait.next_look(next_deadline, now) - now).total_seconds()
                changes = await feed.changes(timeout=min(max(seconds, view.pause), view.longest))
                if see is not None:
                    await see(change.raw for change in changes if change.kind == "present")
                view.take(changes, await feed.api.now())
        finally:
            await pool_updates.leave(pool, owner, view.take_update)


async def _extended_until(wait: AttemptWait, api: AsyncApi) -> datetime | None:
    """Return until when it may go on by its demand as it is now; None where that was not extended, or is gone.

    Raises:
        GpuError: The demand could not be read, but may be later.
    """
    if not wait.demand:
        return None
    try:
        raw = await api.get(f"{LEASES}/{wait.demand}".lstrip("/"))
        lease = read(raw, DemandLease.parse) if raw is not None else None
    except (PermissionDenied, NotParsed):
        return None
    return extended_deadline(wait.deadline, lease.pods_end_by, wait.timed_out_at) if lease else None


async def _is_believed(progress: Progress, view: View, now: datetime) -> bool:
    return progress.error is None or await view.believes(progress.error, now)


def _note_use(
    pods: Iterable[Json], now: datetime, open_access: Callable[[], ClusterAccess], narrator: Narrator
) -> None:
    """Record when pods ran that may not be found later, for their run's bill."""
    record_pods(lambda: open_access().api_client(), pods, partial(narrator.log, now), now=lambda: now)


async def _keep_pool(view: View, pool: GpuPool, owner: str) -> None:
    """Keep the pool reconciled exactly while the view needs it."""
    if view.needs_pool_loop and not view.is_kept:
        view.is_kept = True
        pool_updates.keep(pool, owner, view.take_update, admits=view.is_admitted_here)
    elif view.is_kept and not view.needs_pool_loop:
        view.is_kept = False
        view.pool_updates = PoolUpdates()
        await pool_updates.leave(pool, owner, view.take_update)
