"""KueueQueue: what Kueue's Workload objects say about one object in a queue.

Its place, why it waits or why nothing will admit it, and its evictions. Where Kueue asks for the nodes by a
ProvisioningRequest, that says why there are none yet: a Workload keeps the message of its check only until the next try
(resetChecksOnEviction of Kueue's pkg/workload/admissionchecks.go).

Conditions, reasons and priorities are those of kueue.x-k8s.io/v1beta2 and v1beta1 (Kueue 0.6 and later), which say them
alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from airflow_gpu_provider.clouds.backoff import ordinal
from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import Resource, kueue_workloads, provisioning_requests
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.provisioning_requests import Cause, ProvisioningRequest
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.cluster.model.status_conditions import Condition, conditions_of
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    GpuError,
    OutOfStock,
    PermissionDenied,
    PoolSpecError,
    QuotaExceeded,
    ReferenceNotFound,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait
from airflow_gpu_provider.untrusted import plain

# Kueue's workload controller says it of a LocalQueue, and of the ClusterQueue that this one names.
_NO_QUEUE = re.compile(r"(?:LocalQueue|ClusterQueue) \S{1,253} doesn't exist")
_QUEUE_COMES_IN = timedelta(minutes=1)
"""How long a queue may be missing: it may be created together with what is to wait in it."""

_RESET = "Reset to Pending after eviction"  # Kueue's message of a check that it has taken back

_SURE_AFTER = 2
"""The request that ends the try if it fails for what no waiting changes: a node pool may just have been made."""

_ENDS: dict[Cause, tuple[type[GpuError], str]] = {
    "stock": (
        OutOfStock,
        "See the ClusterQueue's admission checks and quota, and retry the task: it gets a new Workload.",
    ),
    "quota": (QuotaExceeded, "Ask the cloud for a higher quota, or want fewer GPUs."),
    "spec": (PoolSpecError, "Correct what this names in the pool or the task; the same request would fail again."),
    "permission": (PermissionDenied, "Allow it to GKE's service agent, or to the node pools' service account."),
}


_WAIT_LONGER = "To wait longer, raise give_up_after of the block's EnsureGpuPoolOperator, or the pool's max_runtime."


class KueueQueue:
    """What is known about one object in its LocalQueue; nothing if the wait has no `queue`."""

    def __init__(self, wait: AttemptWait, pool: GpuPool) -> None:
        self._resource = kueue_workloads(wait.namespace)
        self._requested = provisioning_requests(wait.namespace)
        self._queue, self._uid, self._pool, self._until = wait.queue, wait.uid, pool, wait.queued_until
        self._workloads: dict[str, Json] = {}  # the whole queue's, by uid
        self._requests: dict[str, ProvisioningRequest] = {}  # the namespace's, by uid
        self._check_message = ""  # by a check, of this object, last
        self._trouble: GpuError | None = None
        self._is_synced = False
        self._missing_since: datetime | None = None

    def wants(self) -> dict[Resource, str]:
        if not self._queue:
            return {}
        by_requests = {self._requested: ""} if self._pool.provisioning_class else {}
        return {self._resource: self._queue, **by_requests}

    def take(self, changes: Iterable[Change]) -> list[Change]:
        """Take the feed's changes of Workloads and ProvisioningRequests, and return the others."""
        rest = []
        for change in changes:
            if change.resource == self._requested:
                self._take_request(change)
                continue
            if change.resource != self._resource:
                rest.append(change)
                continue
            self._trouble = change.error
            self._is_synced = self._is_synced or change.kind == "synced"
            if change.kind == "present":
                self._workloads[change.raw["metadata"]["uid"]] = change.raw
                if is_of(change.raw, self._uid):
                    self._check_message = _check_in_words(change.raw) or self._check_message
            elif change.kind == "gone":
                self._workloads.pop(change.raw["metadata"]["uid"], None)
        return rest

    def _take_request(self, change: Change) -> None:
        if change.kind == "present":
            self._requests[change.raw["metadata"]["uid"]] = ProvisioningRequest.parse(change.raw)
        elif change.kind == "gone":
            self._requests.pop(change.raw["metadata"]["uid"], None)

    @property
    def _mine(self) -> Json:
        """The object's Workload; empty before Kueue has made it."""
        return next((each for each in self._workloads.values() if is_of(each, self._uid)), {})

    @property
    def _request(self) -> ProvisioningRequest | None:
        """The newest request for its nodes; None where there is none, or it may not be read."""
        owner = (self._mine.get("metadata") or {}).get("uid")
        own = [each for each in self._requests.values() if owner and each.owner == owner]
        return max(own, key=lambda each: each.attempt, default=None)

    @property
    def in_words(self) -> str:
        """Its place, and why it is not admitted; empty for an object in no queue."""
        if not self._queue:
            return ""
        if self.is_unknown:
            return f"its place in queue {self._queue} is unknown: {self._trouble}"
        if not self._is_synced:
            return f"in queue {self._queue}"
        place = queued_in_words(self._uid, self._queue, self._workloads.values())
        return "; ".join(filter(None, (place, self._provisioning)))

    @property
    def _provisioning(self) -> str:
        """Why its nodes are not there, and when they are asked for again; empty where nothing asks for them."""
        again_at = parse_time(((self._mine.get("status") or {}).get("requeueState") or {}).get("requeueAt"))
        again = f"tried again at {again_at:%H:%M:%S}Z" if again_at else ""
        request = self._request
        return "; ".join(filter(None, (request.in_words if request else self._check_message, again)))

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown why it waits or was evicted."""
        return self._trouble is not None and not isinstance(self._trouble, ClusterUnreachable)

    @property
    def is_absent(self) -> bool:
        """Whether the cluster has no Kueue that this package knows, so that normally nothing admits it."""
        return isinstance(self._trouble, ObjectNotFound)

    def barred(self, what: str, now: datetime) -> GpuError | None:
        """Return why Kueue will not admit `what` by itself; None while it may, or if unknown.

        It has deactivated the Workload (`spec.active`: an admission check was rejected, or it was requeued too often),
        a request for its nodes that is not the first has failed for what no waiting changes, it has waited for as long
        as it may, or the queue has not been there for a minute.
        """
        mine, request = self._mine, self._request
        reserved = conditions_of(mine).get("QuotaReserved")
        why = reserved.message if reserved is not None and not reserved.is_true else ""
        if mine and not _is_active(mine):
            evicted = evicted_in_words(self._uid, self._workloads.values())
            reasons = "; ".join(dict.fromkeys(filter(None, (evicted, self._provisioning)))) or why or "no reason given"
            return self._not_admitted(what, f"its Workload in queue {self._queue} is deactivated ({reasons})")
        if request and request.has_failed and request.attempt >= _SURE_AFTER and self._cause in ("spec", "permission"):
            return self._not_admitted(what, request.in_words)
        if self._until is not None and now >= self._until:
            error = self._not_admitted(what, f"it has waited until {self._until:%Y-%m-%d %H:%MZ} ({self.in_words})")
            return type(error)(error.what, f"{error.fix} {_WAIT_LONGER}", **error.details)
        is_missing = _NO_QUEUE.search(why) is not None
        self._missing_since = (self._missing_since or now) if is_missing else None
        if self._missing_since is None or now < self._missing_since + _QUEUE_COMES_IN:
            return None
        return ReferenceNotFound(
            f"{what} will not be admitted: {why.rstrip('.')}.",
            "Create it, or correct queue_name: kubectl get localqueues names those of the namespace, and each one's"
            " ClusterQueue.",
            missing="queue",
            name=self._queue,
        )

    @property
    def _cause(self) -> Cause:
        """What its nodes are missing for; by the words of its check where the request may not be read."""
        if (request := self._request) is not None:
            return request.cause
        return "quota" if "quota" in self._check_message.lower() else "stock"

    def _not_admitted(self, what: str, why: str) -> GpuError:
        error, fix = _ENDS[self._cause]
        return error(f"{what} will not be admitted: {why}.", fix, pool=self._pool.name, queue=self._queue)

    @property
    def admitted_at(self) -> datetime | None:
        """Since when Kueue has admitted it; None if it has not, or if unknown."""
        return since(self._uid, "Admitted", self._workloads.values())

    @property
    def has_admitted(self) -> bool:
        """Whether Kueue has admitted it before: only then does a Workload have that condition, true or not."""
        return "Admitted" in conditions_of(self._mine)

    @property
    def evicted(self) -> str:
        """Why it was evicted; empty if it was not."""
        return evicted_in_words(self._uid, self._workloads.values())


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


def _check_in_words(workload: Json) -> str:
    """Return what its admission checks say, "<check>: <message>"; empty where that is nothing, or nothing of now."""
    checks: Iterable[Json] = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [(each["name"], plain(str(each.get("message") or ""))) for each in checks if each.get("state") != "Ready"]
    return "; ".join(f"{name}: {text.rstrip('.')}" for name, text in waiting if text and _RESET not in text)


def _is_active(workload: Json) -> bool:
    return bool((workload.get("spec") or {}).get("active", True))


def _is_pending(workload: Json) -> bool:
    if not _is_active(workload):
        return False
    conditions: Iterable[Json] = (workload.get("status") or {}).get("conditions") or ()
    return not {each["type"] for each in conditions if each["status"] == "True"} & {"QuotaReserved", "Finished"}


def _order(workload: Json) -> tuple[int, str, str]:
    """Kueue's order: the highest priority first, then the oldest, then by name."""
    metadata = workload["metadata"]
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    return -priority, str(metadata.get("creationTimestamp")), str(metadata["name"])
