"""Pods whose kubelet the benchmark plays: any number of them wait, run and end when it says so, with no process behind.

What is measured is what waiting for pods costs, and how soon their end is heard of; a thousand real containers on two
cores would drown that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

from kubernetes import client

NODE = "played"
_RENEW_SECONDS = 10.0
_AT_ONCE = 8

State = Literal["pending", "running"]


class PlayedPods:
    """A context manager: the Node exists, and is kept Ready, until the end; all that was made goes then."""

    def __init__(self, api: client.CoreV1Api) -> None:
        self._api = api
        self._leases = client.CoordinationV1Api(api.api_client)
        self._names: list[str] = []
        self._nodes: list[str] = []
        self._over = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="played-kubelet", daemon=True)

    def __enter__(self) -> PlayedPods:
        self.add_node(NODE, {})
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._renewal.join()
        self.delete()
        for name in self._nodes:
            self._api.delete_node(name)
            self._leases.delete_namespaced_lease(name, "kube-node-lease")

    def add_node(self, name: str, labels: dict[str, str]) -> None:
        """Let there be a Ready Node on which nothing is scheduled."""
        taints = [{"key": "played", "effect": "NoSchedule"}]
        self._api.create_node({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played"}]
        self._api.patch_node_status(name, {"status": {"conditions": conditions, "capacity": {"pods": "5000"}}})
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)}
        self._leases.create_namespaced_lease("kube-node-lease", {"metadata": {"name": name}, "spec": spec})
        self._nodes.append(name)

    def create(
        self,
        count: int,
        state: State,
        *,
        prefix: str,
        labels: dict[str, str],
        metadata: Callable[[int], dict[str, Any]] = lambda number: {},
    ) -> list[dict[str, str]]:
        """Create pods, and return name and uid of each. What is pending selects a node that there is not.

        `metadata` returns what a pod's has besides, by its number.
        """

        def one(number: int) -> dict[str, str]:
            where = {"nodeName": NODE} if state == "running" else {"nodeSelector": labels}
            resources = {"limits": {"nvidia.com/gpu": "1"}} if state == "pending" else {}
            containers = [{"name": "base", "image": "busybox:1.36", "resources": resources}]
            spec = {
                "restartPolicy": "Never",
                "containers": containers,
                "tolerations": [{"operator": "Exists"}],
                **where,
            }
            body = {"metadata": {"name": f"{prefix}-{number}", "labels": labels, **metadata(number)}, "spec": spec}
            pod = self._api.create_namespaced_pod("default", body)
            if state == "running":
                self._report(pod.metadata.name, "Running", {"running": {"startedAt": _now()}})
            return {"name": pod.metadata.name, "uid": pod.metadata.uid}

        with ThreadPoolExecutor(_AT_ONCE) as workers:
            pods = list(workers.map(one, range(count)))
        self._names += [pod["name"] for pod in pods]
        return pods

    def end(self, pods: Sequence[dict[str, str]]) -> dict[str, float]:
        """Let the pods succeed, and return when each was reported, by time.time()."""

        def one(pod: dict[str, str]) -> tuple[str, float]:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}}
            at = time.time()
            self._report(pod["name"], "Succeeded", ended)
            return pod["name"], at

        with ThreadPoolExecutor(_AT_ONCE) as workers:
            return dict(workers.map(one, pods))

    def delete(self) -> None:
        """Delete every pod that is left."""

        def one(name: str) -> None:
            self._api.delete_namespaced_pod(name, "default", grace_period_seconds=0)

        with ThreadPoolExecutor(_AT_ONCE) as workers:
            list(workers.map(one, self._names))
        self._names.clear()

    def _report(self, name: str, phase: str, state: dict[str, Any]) -> None:
        ready = "running" in state
        container = {"name": "base", "image": "busybox:1.36", "imageID": "", "restartCount": 0, "ready": ready}
        status = {
            "phase": phase,
            "startTime": _now(),
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}],
            "containerStatuses": [{**container, "state": state}],
        }
        self._api.patch_namespaced_pod_status(name, "default", {"status": status})

    def _renew(self) -> None:
        """Do what kubelets do for their Nodes to stay Ready."""
        while not self._over.wait(_RENEW_SECONDS):
            renewed = {"spec": {"renewTime": _now(micro=True)}}
            for name in list(self._nodes):
                self._leases.patch_namespaced_lease(name, "kube-node-lease", renewed)


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
