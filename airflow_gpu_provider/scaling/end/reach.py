"""How far an extension of demand reaches what runs: pods that end before it all the same, and Jobs that run on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.api.rest import ApiClient, call, list_items
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, RUN_LABEL, Pod, jobs_path
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.scaling.deadlines import is_cut_short, job_seconds, pod_ends_at
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.gang_jobs import is_over
from airflow_gpu_provider.times import parse_time

_JOBS = "/apis/batch/v1/jobs"


def check_reaches(snapshot: PoolSnapshot, before: DemandLease, after: DemandLease) -> None:
    """Raise DemandNotExtended where a pod of the run ends at about the demand's end, whatever that will be."""
    found = sorted((ends_at, str(pod)) for pod, ends_at in _ends(snapshot, before))
    cut = [(ends_at, pod) for ends_at, pod in found if is_cut_short(ends_at, before.pods_end_by, after.pods_end_by)]
    if cut:
        ends = ", ".join(f"{pod} at {ends_at:%Y-%m-%d %H:%M:%SZ}" for ends_at, pod in cut)
        raise DemandNotExtended(
            f"Pool {snapshot.pool.name}: what runs of {before.key} would not last until {after.until:%Y-%m-%d %H:%MZ}:"
            f" by its activeDeadlineSeconds, which nobody can raise, or with its machine ends pod {ends}.",
            "Extend it for what starts later with pods_may_end=True (--pods-may-end); a training that has a checkpoint"
            " goes on in its next try.",
            pool=snapshot.pool.name,
            pods=[pod for _, pod in cut],
        )


def _ends(snapshot: PoolSnapshot, lease: DemandLease) -> Iterator[tuple[Pod, datetime]]:
    machines = {machine.id: machine for group in snapshot.groups for machine in group.machines}
    launched = {node.name: machines[node.machine].launched_at for node in snapshot.nodes if node.machine in machines}
    for pod in _of_run(snapshot, lease):
        ends_at = pod_ends_at(
            snapshot.now,
            kubelet_since=pod.kubelet_since,
            active_deadline=pod.active_deadline,
            launched_at=launched.get(pod.node or ""),
            machine_lifetime=snapshot.pool.node_lifetime,
        )
        if ends_at is not None:
            yield pod, ends_at


def _of_run(snapshot: PoolSnapshot, lease: DemandLease) -> Iterator[Pod]:
    return (pod for pod in snapshot.pods if pod.run == lease.key.hash and not (pod.finished or pod.deleting))


def extend_jobs(api: ApiClient, snapshot: PoolSnapshot, lease: DemandLease) -> Sequence[str]:
    """Raise the activeDeadlineSeconds of a run's Jobs, gangs and workloads, to its demand's end; return what was done.

    Kubernetes allows that (ValidateJobSpecUpdate in its pkg/apis/batch/validation).

    Raises:
        GpuError: A Job could not be read or written; others may have been written.
    """
    done = []
    for job in _jobs(api, snapshot, lease):
        seconds = _seconds_until(lease.pods_end_by, job, snapshot.now)
        if seconds is None:
            continue
        meta = job["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "spec": {"activeDeadlineSeconds": seconds}}
        call(api, "patch", f"{jobs_path(meta['namespace'])}/{meta['name']}", resource="jobs", body=body)
        done.append(f"Job {meta['namespace']}/{meta['name']} may run until then, too")
    return done


def _jobs(api: ApiClient, snapshot: PoolSnapshot, lease: DemandLease) -> Collection[dict[str, Any]]:
    """Return the run's Jobs: those that pods are of, and gangs that wait for their turn."""
    pods = [*_of_run(snapshot, lease)]
    paths = {f"{jobs_path(pod.namespace)}/{pod.job_name}" for pod in pods if pod.job}
    paths |= {f"/{pod.workload}" for pod in pods if "/jobs/" in pod.workload}
    selector = f"{RUN_LABEL}={lease.key.hash},{GANG_LABEL}"
    waiting = list_items(api, _JOBS, resource="jobs", labelSelector=selector) if lease.gang else ()
    found = {job["metadata"]["uid"]: job for job in waiting}
    for path in sorted(paths):
        with suppress(ObjectNotFound):  # it has just been deleted
            job = call(api, "get", path, resource="jobs")
            found[job["metadata"]["uid"]] = job
    return found.values()


def _seconds_until(until: datetime, job: dict[str, Any], now: datetime) -> int | None:
    """Return a Job's activeDeadlineSeconds with which it may run until then; None where it may, or has ended."""
    given = job["spec"].get("activeDeadlineSeconds")
    if given is None or is_over(job):
        return None
    since = parse_time((job.get("status") or {}).get("startTime")) or now
    needed = job_seconds(until - since)
    return needed if needed > given else None
