"""The pods of this agent's nodes: one watch for all of them, and one worker for each."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping
from typing import Any

from gpu_sandbox.nodes.following import Follower
from gpu_sandbox.nodes.machine import Machine
from gpu_sandbox.nodes.node import HOST_IP, Node
from gpu_sandbox.nodes.pod_worker import PodWorker

_PODS = "/api/v1/pods"
_SCHEDULED = "spec.nodeName!="
log = logging.getLogger(__name__)


class Pods:
    """Follows the API's pods and keeps a worker for each that is bound to a node of ours."""

    def __init__(self, machine: Machine, nodes: Mapping[str, Node]) -> None:
        self._machine = machine
        self._nodes = nodes
        self._workers: dict[str, PodWorker] = {}
        self._follower = Follower(
            machine.api, _PODS, field_selector=_SCHEDULED, changed=self._upsert, removed=self._removed
        )
        self._addresses = 0

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of a pod, the newest if the name was used again."""
        named = [worker for worker in self._workers.values() if worker.key == (namespace, name)]
        return named[-1] if named else None

    def node_added(self, name: str) -> None:
        """Take up the pods that were bound to a node before it was ours."""
        for pod in list(self._follower.objects.values()):
            if pod["spec"].get("nodeName") == name:
                self._upsert(pod)

    async def abandon_node(self, name: str) -> None:
        """Kill the pods of a node that is lost."""
        lost = [worker for worker in self._workers.values() if worker.node.name == name]
        await asyncio.gather(*(worker.abandon() for worker in lost))

    def shut_down_node(self, name: str, seconds: float) -> None:
        """Stop the pods of a machine that shuts down in so many seconds."""
        for worker in self._workers.values():
            if worker.node.name == name:
                worker.shut_down(seconds)

    async def run(self) -> None:
        """Follow them until cancelled, through restarts of the API server."""
        await self._follower.run()

    def _upsert(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self._machine.names.pod_changed(pod)
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node is None:
            return
        worker = PodWorker(pod, node, self._machine, pod_ip=self._address(pod))
        self._workers[uid] = worker
        worker.start().add_done_callback(lambda task: self._finished(uid, task))

    def _address(self, pod: Mapping[str, Any]) -> str:
        """Every address in 127/8 is this machine: pods get one each, so that they can tell themselves apart."""
        if pod["spec"].get("hostNetwork"):
            return HOST_IP
        self._addresses = self._addresses % 0xFDFFFF + 1
        return str(ipaddress.IPv4Address("127.1.0.0") + self._addresses)

    def _removed(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self._machine.names.pod_removed(pod)
        if uid in self._workers:
            self._workers[uid].removed()

    def _finished(self, uid: str, task: asyncio.Task[None]) -> None:
        self._workers.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
