"""All Nodes and Pods by plain lists, for a clock that stands still while Kubernetes does its work.

Scheduler, controllers and kubelets live in real time: what they do at once takes them moments, in which days could pass
by hand. So a look waits until they have done it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from gpu_sandbox.autoscaler.cluster import Cluster
from gpu_sandbox.autoscaler.scale_up import without_room
from gpu_sandbox.autoscaler.watching import NODES, PODS
from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.faults import Faults

# The scheduler tries a pod again within ten seconds of a new node. What is not done in this time, on a busy machine, is
# not waited for again.
_AT_ONCE = 60.0
_POLL = 0.02
_KINDS = (NODES, PODS)
_EVENTS = "/api/v1/events?limit=1"
_EXACTLY = "resourceVersionMatch=Exact"


class ClusterLists:
    """Implements `ClusterView`; `version` is another one after each list that differs from the one before."""

    def __init__(self, control_plane: ControlPlane, clock: Clock, faults: Faults) -> None:
        self.version = 0
        self._control_plane = control_plane
        self._clock = clock
        self._faults = faults
        self._objects: dict[str, list[Mapping[str, Any]]] = {}
        self._seen_at: dict[str, float] = {}
        self._waited_for: set[str] = set()

    def start(self) -> None:
        """Nothing is to be started."""

    def stop(self) -> None:
        """Nothing goes on."""

    def objects(self, path: str) -> list[Mapping[str, Any]]:
        """All of `NODES` or `PODS`. Raises ConnectionError before they have been listed for the first time."""
        if path not in self._objects:
            raise ConnectionError(f"{path} has not been listed yet")
        return self._objects[path]

    def born(self, one: Mapping[str, Any]) -> float:
        """When it was first listed: the API server's own stamp is by another clock."""
        return self._seen_at[one["metadata"]["uid"]]

    def refresh(self) -> None:
        """List both kinds. OSError while the API server is away."""
        # It keeps no cache of Events, so their list tells etcd's revision.
        revision = self._list(_EVENTS)["metadata"]["resourceVersion"]
        listed = {path: self._list(f"{path}?resourceVersion={revision}&{_EXACTLY}")["items"] for path in _KINDS}
        if listed != self._objects:
            self._objects = listed
            self.version += 1
        uids = {one["metadata"]["uid"] for one in (*self._objects[NODES], *self._objects[PODS])}
        now = self._clock.now()
        self._seen_at = {uid: self._seen_at.get(uid, now) for uid in uids}
        self._waited_for &= uids

    def note_what_is_new(self) -> None:
        """Have what was created until now be born now."""
        with contextlib.suppress(OSError):
            self.refresh()

    def _list(self, path: str) -> Any:
        status, answer = self._control_plane.request("GET", path)
        if status != HTTPStatus.OK:
            raise ConnectionError(f"GET {path}: {status}")
        return answer

    def settle(self, look: Callable[[], Cluster]) -> None:
        """List until Kubernetes is about to do nothing; what it does not do at once is not waited for again.

        OSError while the API server is away.
        """
        begin = time.monotonic()
        while True:
            self.refresh()
            cluster = look()
            self._waited_for |= {node.uid for node in cluster.nodes if node.usable}
            expected = about_to_change(cluster) - self._waited_for - self._kept_from_coming_up(cluster)
            if not expected:
                return
            if time.monotonic() > begin + _AT_ONCE:
                self._waited_for |= expected
                return
            time.sleep(_POLL)

    def _kept_from_coming_up(self, cluster: Cluster) -> set[str]:
        """The UIDs of nodes whose GPUs a fault takes away."""
        if self._faults.device_plugin_never_ready or self._faults.driver_never_ready:
            return {node.uid for node in cluster.nodes if node.has_accelerator}
        return set()


def about_to_change(cluster: Cluster) -> set[str]:
    """The UIDs of pods that are about to be bound or found unschedulable, or to end, and of nodes that come up."""
    rooms = [(node.template, node.free) for node in cluster.nodes if node.usable]
    without = {pod["metadata"]["uid"] for pod in without_room(cluster.pending, rooms)}
    with_room = {pod["metadata"]["uid"] for pod in cluster.pending} - without
    undecided = {pod["metadata"]["uid"] for pod in cluster.undecided}
    on_nodes = [pod["metadata"] for node in cluster.nodes for pod in node.pods]
    ending = {metadata["uid"] for metadata in on_nodes if metadata.get("deletionTimestamp")}
    starting = {node.uid for node in cluster.nodes if not node.usable}
    return with_room | undecided | ending | starting
