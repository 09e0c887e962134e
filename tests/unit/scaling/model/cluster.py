"""Cluster: the objects of the model's API server, by name, and what kubelets and people do to nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.times import format_time
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import Raw
from tests.unit.scaling.model.actors import Actors
from tests.unit.scaling.model.client import ActorsClient

PODS = "api/v1/namespaces/default/pods"
NODES = "api/v1/nodes"

READY_AFTER = 6.0
"""Seconds from joining until a node can be Ready; more than FRESH."""


class Cluster:
    """What of the world an API server has.

    Attributes:
        api: The actors' way to it.
    """

    def __init__(self, actors: Actors) -> None:
        self.actors = actors
        self.server = ApiServer(actors.clock.now)
        self.server.put(f"api/v1/namespaces/{DEMAND_NAMESPACE}", {"metadata": {}})
        self.api = ActorsClient(self.server, actors)

    @property
    def now(self) -> datetime:
        return self.actors.clock.now()

    def stamp(self) -> str:
        return format_time(self.now)

    @property
    def pods(self) -> dict[str, Raw]:
        return self.server.named("api/v1/pods")

    @property
    def nodes(self) -> dict[str, Raw]:
        return self.server.named("api/v1/nodes")

    @property
    def leases(self) -> dict[str, Raw]:
        return self.server.named("apis/coordination.k8s.io/v1/leases")

    def change_pod(self, pod: Raw, patch: Raw) -> None:
        self.server.patch(f"{PODS}/{pod['metadata']['name']}", patch)

    def change_node(self, node: Raw, patch: Raw) -> None:
        self.server.patch(f"{NODES}/{node['metadata']['name']}", patch)

    def remove_pod(self, name: str) -> None:
        self.server.remove(f"{PODS}/{name}")

    def remove_pods(self) -> None:
        for name in self.pods:
            self.remove_pod(name)

    def running(self) -> list[Raw]:
        return [raw for raw in self.pods.values() if raw["status"]["phase"] == "Running"]

    def pods_on(self, machine: str) -> list[Pod]:
        pods = self.pods.values()
        return [Pod.parse(raw) for raw in pods if raw["spec"].get("nodeName") == f"node-{machine}"]

    def live_leases(self, now: datetime) -> Iterator[Raw]:
        for raw in self.leases.values():
            until = raw["metadata"].get("annotations", {}).get("airflow-gpu-provider/until")
            if until and datetime.fromisoformat(until) > now:
                yield raw

    def become_ready(self, node: Raw) -> None:
        joined = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
        condition = node["status"]["conditions"][0]
        if condition["status"] == "False" and self.now - joined >= timedelta(seconds=READY_AFTER):
            self.actors.note(f"{node['metadata']['name']} is Ready")
            self._report(node, "True")

    def _report(self, node: Raw, ready: str) -> None:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": self.stamp()}
        self.change_node(node, {"status": {"conditions": [condition]}})

    def blink(self, node: Raw) -> None:
        """The node is not Ready for a while, as when its kubelet restarts."""
        self.actors.note(f"{node['metadata']['name']} is not Ready")
        self._report(node, "False")

    def cordon_by_people(self, node: Raw) -> None:
        if not node["spec"].get("unschedulable"):
            self.actors.note(f"somebody cordons {node['metadata']['name']}")
            self.change_node(node, {"spec": {"unschedulable": True}})

    def uncordon_by_people(self) -> bool:
        """People take their cordons back; returns whether there were any."""
        theirs = [n for name, n in self.nodes.items() if self.is_cordoned_by_people(name.removeprefix("node-"))]
        for node in theirs:
            self.change_node(node, {"spec": {"unschedulable": None}})
        return bool(theirs)

    def is_cordoned_by_people(self, machine: str) -> bool:
        raw = self.nodes.get(f"node-{machine}")
        return raw is not None and Node.parse(raw).cordoned and not Node.parse(raw).cordon_mark

    def tainted(self) -> list[Raw]:
        return [node for node in self.nodes.values() if node["spec"].get("taints")]


def until_of(lease: Raw) -> datetime:
    return datetime.fromisoformat(lease["metadata"]["annotations"]["airflow-gpu-provider/until"])
