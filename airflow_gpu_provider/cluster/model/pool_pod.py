"""Pod: a pod that matters to a pool as a small record: which node it holds, whose it is, what GPUs it asks for. Pure.

And the labels and annotations by which pods are known, gangs' too: pods of an Indexed Job that run together or not at
all, one on each of several nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.cluster.model.devices import asked
from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL, ZONE_LABEL
from airflow_gpu_provider.cluster.model.node_requirements import values_named
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED, collect_within, has_succeeded
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.times import format_time, parse_container_time, parse_time
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
_MIRROR = "kubernetes.io/config.mirror"
_FINISHED = ("Succeeded", "Failed")


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
        kubelet_since: Since when its kubelet has it, and counts `active_deadline`; None where none has.
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
    kubelet_since: datetime | None = None
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

    @property
    def zone(self) -> str | None:
        """The zone that its node selector names; None where it names none."""
        return dict(self.node_selector).get(ZONE_LABEL)

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
            gpus=asked(spec),
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
            kubelet_since=parse_time(status.get("startTime")),
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
    return min(filter(None, map(parse_container_time, starts)), default=None)


def _finished_at(status: dict[str, Any]) -> datetime | None:
    states = (container.get("state") or {} for container in status.get("containerStatuses") or ())
    ends = (parse_container_time((state.get("terminated") or {}).get("finishedAt")) for state in states)
    if last := max(filter(None, ends), default=None):
        return last
    # A pod that was evicted, or whose node went, has no container to ask.
    times = (parse_time(c.get("lastTransitionTime")) for c in status.get("conditions") or ())
    return max((at for at in times if at), default=None)
