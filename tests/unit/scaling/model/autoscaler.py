"""The autoscaler, as clumsy as it may be: it adds a node for pods that wait, and removes what is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.model.node import AUTOSCALER_TAINT
from tests.fakes.objects import Raw

if TYPE_CHECKING:
    from tests.unit.scaling.model.world import World


def grows(world: World, index: int = 0) -> None:
    """Add a node for the pods that find none, in any group that may have one more."""
    groups = (asg for asg in world.cloud.asgs.values() if not asg.out_of_stock and asg.desired >= len(asg.live))
    asgs = [asg for asg in groups if asg.desired < world.pool.max_nodes]
    coming = sum(max(asg.desired - len(asg.live), 0) for asg in world.cloud.asgs.values()) + len(world.free())
    if asgs and len(world.pending()) > coming:
        asg = asgs[index % len(asgs)]
        world.actors.note(f"the autoscaler sets {asg.candidate.group} to {asg.desired + 1}")
        asg.desired += 1
        asg.switched = False


def begins_to_remove(world: World, node: Raw) -> None:
    """Taint an idle node: no pod is placed there from now on."""
    busy = {raw["spec"].get("nodeName") for raw in world.pods.values() if raw["status"]["phase"] == "Running"}
    if node["metadata"]["name"] not in busy:
        world.actors.note(f"the autoscaler taints {node['metadata']['name']}")
        world.change_node(node, {"spec": {"taints": [{"key": AUTOSCALER_TAINT, "effect": "NoSchedule"}]}})


def removes(world: World, node: Raw) -> None:
    """Remove a tainted node, or take the taint off where a pod came all the same."""
    name = node["metadata"]["name"]
    machine = name.removeprefix("node-")
    asg = world.cloud.asg_of(machine)
    if name in {bound for bound, _ in world.bindings.values()} or any(map(world.is_protected, world.pods_on(machine))):
        world.change_node(node, {"spec": {"taints": None}})
    elif asg and machine in asg.live and asg.desired > 0:
        asg.desired -= 1
        world.terminate(machine)


def takes_size_back(world: World) -> None:
    """Stop asking for what has not come."""
    for asg in world.cloud.asgs.values():
        asg.desired = min(asg.desired, len(asg.live))
