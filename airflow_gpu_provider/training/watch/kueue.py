"""What Kueue's Workload objects say about an object in a queue: its place, why it waits, and its evictions.

KueueQueue gets them from the shared watch; everything else is pure. Conditions, reasons and priorities are those of
kueue.x-k8s.io/v1beta2 and v1beta1 (Kueue 0.6 and later), which say them alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.informer import Change
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.status_conditions import Condition, conditions_of
from airflow_gpu_provider.cluster.watched import Resource, kueue_workloads
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError
from airflow_gpu_provider.platforms.backoff import ordinal


class KueueQueue:
    """What is known about one object in its LocalQueue; nothing if `queue` is empty."""

    def __init__(self, namespace: str, queue: str, uid: str) -> None:
        self._resource = kueue_workloads(namespace)
        self._queue = queue
        self._uid = uid
        self._workloads: dict[str, Json] = {}  # the whole queue's, by uid
        self._trouble: GpuError | None = None
        self._is_synced = False

    def wants(self) -> dict[Resource, str]:
        """Return what to watch."""
        return {self._resource: self._queue} if self._queue else {}

    def take(self, changes: Iterable[Change]) -> list[Change]:
        """Take the feed's Workload changes, and return the others."""
        rest = []
        for change in changes:
            if change.resource != self._resource:
                rest.append(change)
                continue
            self._trouble = change.error
            self._is_synced = self._is_synced or change.kind == "synced"
            if change.kind == "present":
                self._workloads[change.raw["metadata"]["uid"]] = change.raw
            elif change.kind == "gone":
                self._workloads.pop(change.raw["metadata"]["uid"], None)
        return rest

    @property
    def in_words(self) -> str:
        """Its place, and why it is not admitted; empty for an object in no queue."""
        if not self._queue:
            return ""
        if self.is_unknown:
            return f"its place in queue {self._queue} is unknown: {self._trouble}"
        if not self._is_synced:
            return f"in queue {self._queue}"
        return queued_in_words(self._uid, self._queue, self._workloads.values())

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown why it waits or was evicted."""
        return self._trouble is not None and not isinstance(self._trouble, ClusterUnreachable)

    @property
    def is_absent(self) -> bool:
        """Whether the cluster has no Kueue that this package knows, so that normally nothing admits it."""
        return isinstance(self._trouble, ObjectNotFound)

    @property
    def admitted_at(self) -> datetime | None:
        """Since when Kueue has admitted it; None if it has not, or if unknown."""
        return since(self._uid, "Admitted", self._workloads.values())

    @property
    def evicted(self) -> str:
        """Why it was evicted; empty if it was not."""
        return evicted_in_words(self._uid, self._workloads.values())

    @property
    def evicted_at(self) -> datetime | None:
        """When it was evicted."""
        return since(self._uid, "Evicted", self._workloads.values())


def since(uid: str, kind: str, workloads: Iterable[Json]) -> datetime | None:
    """Return since when a condition of the object's Workload is true; None if it is not."""
    condition = _conditions(uid, workloads).get(kind)
    return condition.since if condition is not None and condition.is_true else None


def queued_in_words(uid: str, queue: str, workloads: Iterable[Json]) -> str:
    """Return the LocalQueue position of the object with this uid, and why Kueue does not admit it.

    Args:
        uid: The object's.
        queue: The LocalQueue.
        workloads: Kueue's Workloads of that queue.
    """
    workloads = [*workloads]
    if not any(is_of(each, uid) for each in workloads):
        return f"Kueue has not taken it into queue {queue} yet"
    waiting = sorted((each for each in workloads if _is_pending(each)), key=_order)
    place = next((number for number, each in enumerate(waiting, 1) if is_of(each, uid)), None)
    where = f"{ordinal(place)} of {len(waiting)} in queue {queue}" if place else f"in queue {queue}"
    found = _conditions(uid, workloads)
    awaited = [found[kind] for kind in ("QuotaReserved", "Admitted") if kind in found and not found[kind].is_true]
    why = next((each.message for each in awaited if each.message), "")
    return "; ".join(filter(None, (where, why)))


def evicted_in_words(uid: str, workloads: Iterable[Json]) -> str:
    """Return why Kueue has evicted the object, "Preempted: ..."; empty if it has not."""
    condition = _conditions(uid, workloads).get("Evicted")
    return str(condition).rstrip(".") if condition is not None and condition.is_true else ""


def is_of(workload: Json, uid: str) -> bool:
    """Return True if the Workload is the one that Kueue has made for this object."""
    return any(each["uid"] == uid for each in workload["metadata"].get("ownerReferences") or ())


def _conditions(uid: str, workloads: Iterable[Json]) -> dict[str, Condition]:
    """Return the conditions of the object's Workload; none before Kueue has made it."""
    return next((conditions_of(each) for each in workloads if is_of(each, uid)), {})


def _is_pending(workload: Json) -> bool:
    if not (workload.get("spec") or {}).get("active", True):
        return False
    conditions: Iterable[Json] = (workload.get("status") or {}).get("conditions") or ()
    return not {each["type"] for each in conditions if each["status"] == "True"} & {"QuotaReserved", "Finished"}


def _order(workload: Json) -> tuple[int, str, str]:
    """Kueue's order: the highest priority first, then the oldest, then by name."""
    metadata = workload["metadata"]
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    return -priority, str(metadata.get("creationTimestamp")), str(metadata["name"])
