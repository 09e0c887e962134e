"""The pods that matter to a pool, as small records: which node they hold, whose they are, what GPUs they ask for.

And the labels and annotations by which they are known, gangs' too: pods of an Indexed Job that run together or not at
all, one on each of several nodes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.clock import format_time, parse_time
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.node_requirements import values_named
from airflow_gpu_provider.cluster.nodes import INSTANCE_TYPE_LABEL, Node
from airflow_gpu_provider.cluster.rest import ApiClient, count_items, delete, find, list_items, list_pages
from airflow_gpu_provider.cluster.threads import AT_ONCE, batches, in_parallel
from airflow_gpu_provider.cluster.uncollected import COLLECT_WITHIN, UNCOLLECTED, collect_within, has_succeeded
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.untrusted import NotParsed, loads, one_line, read

GANG_LABEL = "airflow-gpu-provider/gang"
"""The label of a gang's Job and of its pods: how many nodes it takes."""

RANK_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' annotation of an Indexed Job's pods: which of them it is, from 0."""

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Kubernetes' label of a Job's pods."""


def jobs_path(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


HANG = "airflow-gpu-provider/hang"
"""The annotation of one running pod of a training, for as long as it may hang."""


@dataclass(frozen=True, kw_only=True)
class HangNote:
    """That a training may hang: what shows it, for how many pods, which all do the same, and since when."""

    since: datetime
    pods: int
    shown_by: str

    def dump(self) -> str:
        return json.dumps({"since": format_time(self.since), "pods": self.pods, "shown_by": self.shown_by})

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Self | None:
        """Read it from a pod's annotations; None where there is none, or one that somebody has edited."""
        try:
            return read(annotations[HANG], cls._parse) if HANG in annotations else None
        except NotParsed:
            return None

    @classmethod
    def _parse(cls, text: str) -> Self:
        record = loads(text)
        return cls(since=time_of(record["since"]), pods=int(record["pods"]), shown_by=one_line(record["shown_by"]))


RUN_LABEL = "airflow-gpu-provider/run"
"""The label of a pod's run: the hash of its DemandKey, which is also in its lease's name."""

TASK_LABEL = "airflow-gpu-provider/task"
"""The label of a pod's task instance, whatever its try: a hash over installation, DAG, run, task and map index."""

WORKLOAD_LABEL = "airflow-gpu-provider/workload"
"""The label of the pods that a workload's controller makes, by a task's manifest: a hash of the task."""

WORKLOAD_PATH = "airflow-gpu-provider/workload-path"
"""The annotation of such pods: the path of the object, which would replace a pod that is deleted alone."""

STUCK_AFTER = timedelta(minutes=10)
"""How long after its grace period ended a pod that does not go stops holding its node: its kubelet is dead."""

_FINALIZED_WITHIN = timedelta(seconds=5)  # the Job controller and Kueue take theirs off when a pod has ended

_PODS = "/api/v1/pods"
_FEW_NODES = 8  # that are asked one by one, all at once
_PODS_FOR_A_REQUEST = 50  # as many, read in pages, cost both sides about as much as one more request
_NODES_BETWEEN_SIGNS_OF_LIFE = 64
_MIRROR = "kubernetes.io/config.mirror"
_FINISHED = ("Succeeded", "Failed")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod on a pool's node, or one that waits for the pool.

    Attributes:
        node: Where it is bound; None while it waits.
        gpus: nvidia.com/gpu that it asks for.
        daemon: A DaemonSet's or a static pod: it comes and goes with its node.
        node_selector: The labels that its node has to have, as pairs.
        machine_types: The only ones that it runs on; empty where its spec names none.
        owner: The run itself, where the pod says it.
        job: The uid of the Job that it is a rank of; empty where it is of no gang. `job_name` is its name.
        delete_at: When the grace period of its deletion ends; None when nobody deleted it.
        finalizers: What keeps it in the cluster once it is deleted, until somebody takes it off.
        uncollected: Its log and result are still to be read.
        collect_within: How long after its end it holds its node for that.
        succeeded: Its containers ended with exit code 0; the one that keeps its result may still run.
        active_deadline: How long its kubelet lets it run (activeDeadlineSeconds); None for as long as it likes.
        started_at: When its first container began to run; None where none has.
        finished_at: When its last container ended, if it has finished.
        workload: The path of the workload whose controller has made it; empty for none.
        gated: Somebody, Kueue say, keeps it from the scheduler by a scheduling gate.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str | None
    phase: str
    gpus: int = 0
    daemon: bool = False
    node_selector: tuple[tuple[str, str], ...] = ()
    machine_types: frozenset[str] = frozenset()
    run: str | None = None
    owner: DemandKey | None = None
    job: str = ""
    job_name: str = ""
    delete_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    uncollected: bool = False
    collect_within: timedelta = COLLECT_WITHIN
    succeeded: bool = False
    active_deadline: timedelta | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    created_at: datetime
    reason: str = ""
    resource_version: str = ""
    workload: str = ""
    gated: bool = False
    hang: HangNote | None = None

    @property
    def deleting(self) -> bool:
        """Whether somebody deleted it; it may still run for its grace period."""
        return self.delete_at is not None

    @property
    def finished(self) -> bool:
        """Whether none of its containers will run again."""
        return self.phase in _FINISHED

    def selects(self, selector: Mapping[str, str]) -> bool:
        """Whether it runs on nodes of the pool with this selector (`GpuPool.node_selector`), and on no others."""
        return selector.items() <= set(self.node_selector)

    def awaits_collection(self, now: datetime) -> bool:
        """Whether it has finished and somebody still has to read its result, in time.

        One that is deleted has been read: a finalizer may keep it for long, whose controller is down.
        """
        if self.deleting or not (self.finished and self.uncollected):
            return False
        return now - (self.finished_at or self.created_at) < self.collect_within

    def is_stuck(self, now: datetime) -> bool:
        """Whether it has ended and is deleted, and its finalizers keep it for longer than their controllers take."""
        ended_at = self.finished_at or self.created_at
        return self.deleting and self.finished and bool(self.finalizers) and now - ended_at > _FINALIZED_WITHIN

    def ran(self, now: datetime) -> tuple[datetime, datetime] | None:
        """Return from when to when its containers ran, until now where they still do; None if none has.

        One that is deleted and whose node is gone never finishes: it ran until its grace period was over at most.
        """
        if self.started_at is None:
            return None
        if self.finished:
            return self.started_at, self.finished_at or now
        return self.started_at, max(self.started_at, min(now, self.delete_at or now))

    def holds_node(self, now: datetime) -> bool:
        """Whether its node has to stay for it."""
        if self.node is None or self.daemon:
            return False
        if self.finished:
            return self.awaits_collection(now)
        return self.delete_at is None or now - self.delete_at < STUCK_AFTER

    @property
    def lets_go_at(self) -> datetime | None:
        """When it stops holding its node, where its end has begun: it was deleted, or waits for its collection."""
        if self.finished and not self.deleting:
            return (self.finished_at or self.created_at) + self.collect_within
        return self.delete_at

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        annotations = meta.get("annotations") or {}
        created_at = datetime.fromisoformat(meta["creationTimestamp"])
        job = _gang_of(meta)
        phase = status.get("phase", "Pending")
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta.get("uid", ""),
            node=spec.get("nodeName") or None,
            phase=phase,
            gpus=gpus_of(spec),
            daemon=_is_daemon(meta, annotations),
            node_selector=tuple((spec.get("nodeSelector") or {}).items()),
            machine_types=values_named(spec, INSTANCE_TYPE_LABEL),
            run=(meta.get("labels") or {}).get(RUN_LABEL),
            owner=_owner(raw),
            job=job.get("uid", ""),
            job_name=job.get("name", ""),
            delete_at=parse_time(meta.get("deletionTimestamp")),
            finalizers=tuple(meta.get("finalizers") or ()),
            uncollected=UNCOLLECTED in annotations,
            collect_within=collect_within(annotations.get(UNCOLLECTED, "")),
            succeeded=has_succeeded(status),
            active_deadline=_seconds(spec.get("activeDeadlineSeconds")),
            started_at=_started_at(status),
            finished_at=_finished_at(status) if phase in _FINISHED else None,
            created_at=created_at,
            reason=status.get("reason", ""),
            resource_version=meta.get("resourceVersion", ""),
            workload=annotations.get(WORKLOAD_PATH, ""),
            gated=bool(spec.get("schedulingGates")),
            hang=HangNote.of(annotations),
        )


def _gang_of(meta: dict[str, Any]) -> dict[str, str]:
    """Return the reference to the Job that the pod is a rank of; empty where it is of no gang."""
    owners = meta.get("ownerReferences") or () if GANG_LABEL in (meta.get("labels") or {}) else ()
    return next((each for each in owners if each["kind"] == "Job"), {})


def _seconds(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


def _owner(raw: dict[str, Any]) -> DemandKey | None:
    """Return the run that the pod says it is of, if its label is that run's."""
    try:
        key = DemandKey.parse(raw)
    except (KeyError, TypeError):
        return None
    return key if raw["metadata"]["labels"].get(RUN_LABEL) == key.hash else None


def gpus_of(spec: dict[str, Any]) -> int:
    """Return how many nvidia.com/gpu a pod with this spec asks for."""

    def limit(container: dict[str, Any]) -> int:
        return int(((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0))

    first = spec.get("initContainers") or ()
    sidecars = sum(limit(c) for c in first if c.get("restartPolicy") == "Always")
    running = sidecars + sum(limit(c) for c in spec.get("containers") or ())
    return max(running, *(limit(c) for c in first), 0) if first else running


def _is_daemon(meta: dict[str, Any], annotations: dict[str, str]) -> bool:
    return _MIRROR in annotations or any(o["kind"] == "DaemonSet" for o in meta.get("ownerReferences") or ())


def _started_at(status: dict[str, Any]) -> datetime | None:
    """Return when the first of the pod's containers began to run, as far as their states still tell."""
    states = (
        state
        for container in status.get("containerStatuses") or ()
        for state in ((container.get("lastState") or {}), (container.get("state") or {}))
    )
    starts = ((state.get("running") or state.get("terminated") or {}).get("startedAt") for state in states)
    return min((datetime.fromisoformat(at) for at in starts if at), default=None)


def _finished_at(status: dict[str, Any]) -> datetime | None:
    ends = [
        datetime.fromisoformat(ended["finishedAt"])
        for container in status.get("containerStatuses") or ()
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    if ends:
        return max(ends)
    # A pod that was evicted, or whose node went, has no container to ask.
    times = (parse_time(c.get("lastTransitionTime")) for c in status.get("conditions") or ())
    return max((at for at in times if at), default=None)


def list_pool_pods(
    api: ApiClient,
    selector: Mapping[str, str],
    nodes: Iterable[Node],
    *,
    at_once: int = AT_ONCE,
    alive: Callable[[], None] = lambda: None,
) -> tuple[Pod, ...]:
    """Return all pods on these nodes, and the unbound pods that select the pool.

    Where nodes are asked one by one, the unbound pods are read first: a pod that is bound in between is then seen
    twice, not missed. All pages of one list show the same moment.

    Args:
        alive: Called between requests, to renew the caller's lock.
    """
    names = {node.name for node in nodes}
    if _is_one_list_cheaper(api, names):
        raw = [*_bound_or_unbound(api, names, alive)]
    else:
        raw = [*_list(api, "spec.nodeName=,status.phase=Pending"), *_on_each(api, names, at_once, alive)]
    found = {pod.uid: pod for pod in map(Pod.parse, raw) if pod.node or pod.selects(selector)}
    return tuple(sorted(found.values(), key=lambda pod: (pod.created_at, pod.namespace, pod.name)))


def list_pods_on(api: ApiClient, nodes: Iterable[Node], *, at_once: int = AT_ONCE) -> list[Pod]:
    """Return the pods that are bound to these nodes, finished ones too."""
    names = {node.name for node in nodes}
    if _is_one_list_cheaper(api, names):
        return [pod for pod in map(Pod.parse, _bound_or_unbound(api, names)) if pod.node]
    return [Pod.parse(raw) for raw in _on_each(api, names, at_once)]


def _is_one_list_cheaper(api: ApiClient, names: Collection[str]) -> bool:
    """Return True if a list of the cluster's pods costs less than one for each node."""
    if len(names) <= _FEW_NODES:
        return False
    pods = count_items(api, _PODS, resource="pods")
    return pods is not None and pods <= len(names) * _PODS_FOR_A_REQUEST


def _bound_or_unbound(
    api: ApiClient, names: Collection[str], alive: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Yield the pods on these nodes, and all that wait for one, from a list of the whole cluster's."""
    for page in list_pages(api, _PODS, resource="pods"):
        for raw in page:
            node = raw["spec"].get("nodeName")
            if node in names if node else raw.get("status", {}).get("phase", "Pending") == "Pending":
                yield raw
        alive()


def _on_each(
    api: ApiClient, names: Iterable[str], at_once: int, alive: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    for some in batches(sorted(names), _NODES_BETWEEN_SIGNS_OF_LIFE):
        for found in in_parallel(lambda name: _list(api, f"spec.nodeName={name}"), some, at_once=at_once):
            yield from found
        alive()


def list_run_pods(api: ApiClient, selector: Mapping[str, str], run: str) -> list[Pod]:
    """Return the pods of a run on this pool, those that are ending too; `run` is the hash of the run's DemandKey."""
    raw = list_items(api, _PODS, resource="pods", labelSelector=f"{RUN_LABEL}={run}")
    return [pod for pod in map(Pod.parse, raw) if pod.selects(selector)]


def delete_pod(api: ApiClient, pod: Pod) -> bool:
    """Delete the pod that was read, and before it the workload that would replace it; False where it is gone."""
    if pod.workload:
        _delete_workload(api, pod)
    return delete(api, f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", resource="pods", uid=pod.uid)


def _delete_workload(api: ApiClient, pod: Pod) -> None:
    """Delete the workload of the pod and of its run, with all its pods; another run's of the same name stays."""
    resource = pod.workload.split("/")[-2]
    found = find(api, f"/{pod.workload}", resource=resource)
    if found and (found["metadata"].get("labels") or {}).get(RUN_LABEL) == pod.run:
        delete(api, f"/{pod.workload}", resource=resource, uid=found["metadata"]["uid"], with_dependents=True)


def _list(api: ApiClient, field_selector: str) -> list[dict[str, Any]]:
    return list_items(api, _PODS, resource="pods", fieldSelector=field_selector)
