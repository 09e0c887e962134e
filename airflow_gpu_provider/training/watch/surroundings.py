"""What a wait is told besides its own pods: the pool's nodes, and what no watch shows.

NodesSeen: a pool's nodes, as their watches show them to one wait. DirectReads: what the API server itself says. A watch
by labels says of an object that lost its label what it says of one that was deleted, and nothing of it after that; and
a list says nothing of what came and went before it. Only a GET tells what is so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import Resource, pool_nodes
from airflow_gpu_provider.cluster.model.gpu_evidence import avoided_by
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.node_requirements import is_met
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.place.fit import size_of

NEW = timedelta(seconds=5)
"""How long after a node has become usable the pool is not called full: the scheduler may take the pod there."""


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
