"""What a wait is told besides its own pods: the pool's nodes, what no watch shows, and the place in Kueue's queue.

NodesSeen: a pool's nodes, as their watches show them to one wait. DirectReads: what the API server itself says. A watch
by labels says of an object that lost its label what it says of one that was deleted, and nothing of it after that; and
a list says nothing of what came and went before it. Only a GET tells what is so.

KueueQueue: what Kueue's Workload objects say about an object in a queue: its place, why it waits or why nothing will
admit it, and its evictions.
Conditions, reasons and priorities are those of kueue.x-k8s.io/v1beta2 and v1beta1 (Kueue 0.6 and later), which say them
alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.clouds.backoff import ordinal
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.gpu_evidence import avoided_by
from airflow_gpu_provider.cluster.informer import Change, Feed
from airflow_gpu_provider.cluster.node_requirements import is_met
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.status_conditions import Condition, conditions_of
from airflow_gpu_provider.cluster.watched import Resource, kueue_workloads, pool_nodes
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, OutOfStock, ReferenceNotFound
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.place.fit import size_of

NEW = timedelta(seconds=5)
"""How long after a node has become usable the pool is not called full: the scheduler may take the pod there."""


# Kueue's workload controller says it of a LocalQueue, and of the ClusterQueue that this one names.
_NO_QUEUE = re.compile(r"(?:LocalQueue|ClusterQueue) \S{1,253} doesn't exist")
_QUEUE_COMES_IN = timedelta(minutes=1)
"""How long a queue may be missing: it may be created together with what is to wait in it."""


class NodesSeen:
    """What is known of the nodes, those too that are gone; `pods` are the JSON of the wait's, which are all alike.

    Attributes:
        gone: The names of nodes that existed and no longer do.
        hidden: The uids, by name, of nodes that no watch shows any more.
    """

    def __init__(self, pool: GpuPool, pods: Collection[Json] = ()) -> None:
        self._pool = pool
        self._pods = pods
        self._watches = pool_nodes(pool.node_selector).keys()
        self._synced: set[Resource] = set()
        self._nodes: dict[str, Node] = {}  # by uid
        self._new: dict[str, datetime] = {}  # by uid: since when a node is usable that was not at first
        self._machines: dict[str, str] = {}  # by name
        self._released_by: dict[str, str] = {}  # by name: who has cordoned it to release it
        self.gone: set[str] = set()
        self.hidden: dict[str, str] = {}

    def take(self, change: Change, now: datetime, failing: Collection[Resource]) -> str | None:
        """Take a change of a node's watch; return the name of a node that is shown. `failing`: the broken watches."""
        if change.kind == "synced":
            self._synced.add(change.resource)
        elif change.kind == "gone":
            name, uid = change.raw["metadata"]["name"], change.raw["metadata"]["uid"]
            self._nodes.pop(uid, None)
            self.hidden[name] = uid
        elif change.kind == "present":
            node = Node.parse(dict(change.raw))
            self._show(node, now, are_known=self.are_known(failing))
            return node.name
        return None

    def _show(self, node: Node, now: datetime, *, are_known: bool) -> None:
        before = self._nodes.get(node.uid)
        if node.offers_gpus and (are_known if before is None else not before.offers_gpus):
            self._new[node.uid] = now
        self._nodes[node.uid] = node
        self._machines[node.name] = node.machine
        self._released_by[node.name] = node.cordoned_by if node.cordoned_by_us else ""
        self.gone.discard(node.name)
        self.hidden.pop(node.name, None)

    def lose(self, name: str) -> None:
        """Take note that a hidden node has left the cluster."""
        self.gone.add(name)
        self.hidden.pop(name)

    def machine(self, name: str) -> str:
        """Return the cloud's name for a node's machine; empty if unknown."""
        return self._machines.get(name, "")

    def released_by(self, name: str) -> str:
        """Return who of this package has cordoned the node to release it; empty for nobody."""
        return self._released_by.get(name, "")

    def named(self, name: str) -> tuple[Node, ...]:
        return tuple(node for node in self._shown() if node.name == name)

    def in_order(self) -> tuple[Node, ...]:
        return tuple(sorted(self._shown(), key=lambda node: node.name))

    def ready(self) -> list[Node]:
        return [node for node in self._shown() if node.offers_gpus]

    def _shown(self) -> Iterator[Node]:
        """Yield the nodes as the pods can use them: one that they avoid for its GPU has a broken one for them."""
        avoided = avoided_by(next(iter(self._pods), {}))
        for node in self._nodes.values():
            is_avoided = not all(is_met(each, node.labels.get(each["key"])) for each in avoided)
            yield node.as_seen_by(node.doubt.by) if node.doubt is not None and is_avoided else node

    def are_known(self, failing: Collection[Resource]) -> bool:
        """Return True once each watch has shown its nodes, or has failed: each has a connection of its own."""
        return self._watches <= self._synced | {*failing}

    def has_new(self, now: datetime) -> bool:
        """Return True if a node has just become usable: the scheduler places a pod there within moments."""
        since = now - NEW
        return any(self._new.get(node.uid, since) > since for node in self.ready())

    def sizes(self) -> dict[str, NodeSize | None]:
        """Return the nodes, or a cloud pool's machine types, with what each offers to pods; empty: unknown.

        For a type with an existing node, its kubelet's values count; otherwise the catalogue's, which deduct less.
        """
        if self._pool.given_nodes is not None:
            are_all_here = self._synced >= self._watches and len(self._nodes) >= self._pool.given_nodes
            return {node.name: size_of(node) for node in self._nodes.values()} if are_all_here else {}
        sizes = dict(self._pool.node_sizes)
        for node in self._nodes.values():
            size, listed = size_of(node), sizes.get(node.instance_type)
            if size is not None and listed is not None:
                sizes[node.instance_type] = replace(size, gpus=listed.gpus)
        return sizes


AGAIN = timedelta(seconds=60)
"""How long an object that was found is believed to be there while no watch shows it."""

AFTER_FAILURE = timedelta(seconds=5)


@dataclass(frozen=True)
class Answer:
    """What the API server said of an object; `raw` is None where it is gone."""

    raw: Json | None


class DirectReads:
    """What was asked about the objects that one wait's watches do not show.

    Attributes:
        failures: Why an object could not be asked for when it last was, by its path.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._due: dict[str, datetime] = {}
        self.failures: dict[str, GpuError] = {}

    async def get(self, path: str, uid: str, now: datetime) -> Answer | None:
        """Ask for the object with this path and uid; None where that failed, or was done a short while ago."""
        if path in self._due and now < self._due[path]:
            return None
        try:
            raw = await self._feed.api.get(path)
        except GpuError as error:
            self.failures[path] = error
            self._due[path] = now + AFTER_FAILURE
            return None
        self.failures.pop(path, None)
        self._due[path] = now + AGAIN
        return Answer(raw if raw is not None and raw["metadata"]["uid"] == uid else None)

    def forget(self, path: str) -> None:
        """Drop what was found: there is news of this object, and the next `get` asks again."""
        self._due.pop(path, None)
        self.failures.pop(path, None)

    def forget_all(self) -> None:
        """Drop all that was found: the watches list all objects again."""
        self._due.clear()
        self.failures.clear()


class KueueQueue:
    """What is known about one object in its LocalQueue; nothing if `queue` is empty."""

    def __init__(self, namespace: str, queue: str, uid: str) -> None:
        self._resource = kueue_workloads(namespace)
        self._queue = queue
        self._uid = uid
        self._workloads: dict[str, Json] = {}  # the whole queue's, by uid
        self._trouble: GpuError | None = None
        self._is_synced = False
        self._missing_since: datetime | None = None

    def wants(self) -> dict[Resource, str]:
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

    def barred(self, what: str, now: datetime) -> GpuError | None:
        """Return why Kueue will not admit `what` by itself; None while it may, or if unknown.

        It has deactivated the Workload (`spec.active`: an admission check was rejected, or it was requeued too often),
        or the queue has not been there for a minute.
        """
        found = _conditions(self._uid, self._workloads.values())
        reserved = found.get("QuotaReserved")
        why = reserved.message if reserved is not None and not reserved.is_true else ""
        if any(is_of(each, self._uid) and not _is_active(each) for each in self._workloads.values()):
            return OutOfStock(
                f"{what} will not be admitted: its Workload in queue {self._queue} is deactivated"
                f" ({evicted_in_words(self._uid, self._workloads.values()) or why or 'no reason given'}).",
                "See the ClusterQueue's admission checks and quota, and retry the task: it gets a new Workload.",
                queue=self._queue,
            )
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
    def admitted_at(self) -> datetime | None:
        """Since when Kueue has admitted it; None if it has not, or if unknown."""
        return since(self._uid, "Admitted", self._workloads.values())

    @property
    def evicted(self) -> str:
        """Why it was evicted; empty if it was not."""
        return evicted_in_words(self._uid, self._workloads.values())

    @property
    def evicted_at(self) -> datetime | None:
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
