"""A cloud that the benchmark plays in this process: each call takes a while, and is counted.

A thousand nodes' worth of real objects would measure the machine's own API server on its two cores. What is measured is
how many requests a decision takes, and how long they keep it, with what answers of that size cost to read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import Group, Machine, Plan, Platform, Report
from airflow_gpu_provider.cluster.api.clock import Clock
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer

PODS = "api/v1/namespaces/default/pods"
NODES = "api/v1/nodes"

_AT_ONCE = 8  # calls of one client to the cloud
_BORN = datetime.now(UTC) - timedelta(hours=2)
_CREATED = _BORN.strftime("%Y-%m-%dT%H:%M:%SZ")


class PlayedCloud(Platform):
    """One group, all of whose machines have joined the cluster; each call takes a while. For several threads.

    Args:
        pool: Whose group it is.
        cluster: Where the machines have joined.
        nodes: How many there are.
        latency: Seconds that each call takes.
        clock: Where they pass.

    Attributes:
        calls: How many there were, by what they do.
    """

    def __init__(self, pool: EksGpuPool, cluster: ApiServer, nodes: int, *, latency: float, clock: Clock) -> None:
        self._latency = latency
        self._clock = clock
        self.calls: Counter[str] = Counter()
        self._mutex = threading.Lock()
        (self._candidate,) = pool.candidates(("us-west-2a",))
        self._max = pool.max_nodes
        self.switch_at: datetime | None = None
        self.machines = [
            Machine(id=f"i-{number}", group=self._candidate.group, state="running", launched_at=_BORN)
            for number in range(nodes)
        ]
        for machine in self.machines:
            _add_node(cluster, pool.name, machine.id)

    def observe(self) -> tuple[Group, ...]:
        self._call("observe")
        group = Group(
            name=self._candidate.group,
            candidate=self._candidate,
            status="active",
            desired=len(self.machines),
            max_size=self._max,
            machines=tuple(self.machines),
            switch_at=self.switch_at,
        )
        return (group,)

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """End machines as Amazon EC2 Auto Scaling does: a call for each, several at a time."""

        def end(machine: Machine) -> None:
            self._call("release")
            with self._mutex:
                self.machines.remove(machine)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(end, machines))
        return ()

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:
        self._call("switch")
        self.switch_at = at

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:
        self._call("switch")
        self.switch_at = None

    def _call(self, what: str) -> None:
        self._clock.sleep(self._latency)
        with self._mutex:
            self.calls[what] += 1

    def cluster_access(self) -> Any:
        raise NotImplementedError

    def plan(self, nodes: int) -> Plan:
        raise NotImplementedError

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        raise NotImplementedError

    def grow(self, sizes: Mapping[str, int]) -> None:
        raise NotImplementedError

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        raise NotImplementedError

    def delete(self, report: Report) -> None:
        raise NotImplementedError


def add_pod(cluster: ApiServer, name: str, node: str, *, daemon: bool, gpus: int = 0) -> None:
    """Let a pod run on a node."""
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "device-plugin", "uid": "d"}] if daemon else []
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "100m"}
    mounts = [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(6)]
    container = {"name": "base", "image": "busybox:1.36", "resources": {"limits": limits}, "volumeMounts": mounts}
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"} for kind in "abcd"]
    raw = {
        "metadata": {"labels": {"app": "played"}, "ownerReferences": owners, "creationTimestamp": _CREATED},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "conditions": conditions},
    }
    cluster.put(f"{PODS}/{name}", raw)


def _add_node(cluster: ApiServer, pool: str, machine: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"}
    raw = {
        "metadata": {"labels": {POOL_LABEL: pool}, "creationTimestamp": _CREATED},
        "spec": {"providerID": f"aws:///us-west-2a/{machine}"},
        "status": {"conditions": [ready], "allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}},
    }
    cluster.put(f"{NODES}/node-{machine}", raw)
