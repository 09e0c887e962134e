"""How an instance that is about to end is drained."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpu_sandbox.aws import Instance
from gpu_sandbox.faults import Faults
from gpu_sandbox.machines import Machines
from gpu_sandbox.manual_clock import ManualClock

BOOT = 45.0
INSTANCE = Instance(
    instance_id="i-1",
    private_ip="10.0.0.1",
    private_dns_name="node-1",
    zone="us-west-2a",
    region="us-west-2",
    instance_type="g6.xlarge",
    market="on-demand",
    asg_name="asg",
    nodegroup="train",
    cluster_name="k8s-ml",
    labels={},
    taints=(),
)


class Cluster:
    """An API server with one Node, and its kubelet's place."""

    def __init__(self, ready: str) -> None:
        self._conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
        self.patched: list[Any] = []

    def add_node(self, spec: Any) -> None:
        """It joins."""

    def request(self, method: str, path: str, body: Any = None, **_: Any) -> tuple[int, Any]:
        if method == "PATCH":
            self.patched.append(body)
        return 200, {"items": [], "status": {"conditions": self._conditions}}


@pytest.mark.parametrize(
    ("ready", "only_ready", "drained"),
    [("True", True, ["i-1"]), ("Unknown", True, []), ("False", True, []), ("Unknown", False, ["i-1"])],
)
def test_a_node_that_is_not_ready_is_not_drained_before_the_cloud_gives_it_up(
    ready: str, only_ready: bool, drained: list[str]
) -> None:
    clock, cluster = ManualClock(), cast(Any, Cluster(ready))
    done: list[str] = []
    joined: list[str] = []
    machines = Machines(
        control_plane=cluster,
        agent=cluster,
        faults=Faults(),
        clock=clock,
        boot_seconds=BOOT,
        node_spec=lambda instance: instance,
        node_joined=joined.append,
        complete_drain=done.append,
        drains_only_ready_nodes=only_ready,
    )
    machines.start()
    machines.instance_launched(INSTANCE)
    clock.advance(BOOT - 1)
    assert joined == []
    clock.advance(1)
    assert joined == ["i-1"]
    machines.drain_requested(INSTANCE)
    clock.advance()
    machines.stop()
    assert cluster.patched == [{"spec": {"unschedulable": True}}]
    assert done == drained
