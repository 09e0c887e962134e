"""The cloud that Karpenter launches machines in: which types it offers, what it refuses, which machines there are.

main.go asks it by HTTP on loopback. A machine that it launches joins the cluster as a Node of the sandbox's.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from gpu_sandbox.aws.ec2_refusals import words_of
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.loopback import LoopbackServer, Reply, Request
from gpu_sandbox.nodes import NodeAgent, NodeSpec
from gpu_sandbox.nodes.quantities import whole
from gpu_sandbox.nodes.spec import Taint

GPU = "nvidia.com/gpu"
_ZONE = "topology.kubernetes.io/zone"
_CAPACITY_TYPE = "karpenter.sh/capacity-type"
_SPOT_SHARE = 0.4
_UNREGISTERED = "karpenter.sh/unregistered"
# A kubelet of a cloud registers with it; the cloud's node controller takes it off.
_UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")
# A kubelet is Ready seconds after Karpenter has registered its node. One that is at once has its first pods ended by
# Kubernetes' taint manager now and then, which still knows Karpenter's taint (karpenter.sh/unregistered:NoExecute).
_READY_AFTER = 0.5
_POLL = 0.1


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """A type of machine, in all zones, on demand and, for less, as spot. Prices are per hour, of us-west-2."""

    name: str
    cpus: int
    memory_gib: int
    gpus: int
    price: float

    def to_json(self, zones: Sequence[str]) -> dict[str, Any]:
        """As Karpenter's kwok provider reads it (kwok/cloudprovider/helpers.go)."""
        resources = {"cpu": str(self.cpus), "memory": f"{self.memory_gib}Gi", "ephemeral-storage": "100Gi"}
        return {
            "name": self.name,
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": resources | ({GPU: str(self.gpus)} if self.gpus else {}),
            "offerings": [
                self._offering(zone, market) for zone, market in itertools.product(zones, ("on-demand", "spot"))
            ],
        }

    def _offering(self, zone: str, market: str) -> dict[str, Any]:
        named = {_ZONE: zone, _CAPACITY_TYPE: market}
        price = self.price * (_SPOT_SHARE if market == "spot" else 1)
        requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in named.items()]
        return {"Price": price, "Requirements": requirements}


TYPES = (
    InstanceType(name="m7i.large", cpus=2, memory_gib=8, gpus=0, price=0.1),
    InstanceType(name="g6.xlarge", cpus=4, memory_gib=16, gpus=1, price=0.8),
    InstanceType(name="g6e.xlarge", cpus=4, memory_gib=32, gpus=1, price=1.9),
    InstanceType(name="g6.12xlarge", cpus=48, memory_gib=192, gpus=4, price=4.6),
)


# unfulfillableCapacityErrorCodes, and ToReasonMessage with its spelling, of karpenter-provider-aws' pkg/errors.
_NO_CAPACITY = (
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "UnfulfillableCapacity",
    "Unsupported",
    "InsufficientFreeAddressesInSubnet",
    "ReservationCapacityExceeded",
)
_FORBIDDEN = "User is not authorized to perform this operation because no identity-based policy allows it"
_REASONS = {  # by how the code begins, the longer beginnings first
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "SpotSLRCreationFailed",
        "User does not hae sufficient permission to create the Spot ServiceLinkedRole to launch spot instances",
    ),
    "AuthFailure": ("Unauthorized", _FORBIDDEN),
    "UnauthorizedOperation": ("Unauthorized", _FORBIDDEN),
    "InvalidLaunchTemplateId.NotFound": (
        "LaunchTemplateNotFound",
        "Launch template used for instance launch wasn't found",
    ),
    "PendingVerification": (
        "AccountPendingVerification",
        "An instance launch was requested but the request for launching resources in this region is still being "
        "verified",
    ),
    "RequestLimitExceeded": ("RequestLimitExceeded", "Request limit exceeded"),
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What a launch is answered with: one of the errors that Karpenter tells apart (pkg/cloudprovider/types.go).

    Attributes:
        kind: "InsufficientCapacity" deletes the claim, with an event; "NodeClassNotReady" deletes it and says nothing;
            "CreateError" keeps it, with `reason` on its condition Launched; so does "LaunchFailed", any other error.
        message: In the cloud's words.
        reason: Of a CreateError.
    """

    kind: Literal["InsufficientCapacity", "NodeClassNotReady", "CreateError", "LaunchFailed"]
    message: str
    reason: str = ""

    @classmethod
    def of_ec2(cls, code: str) -> Refusal:
        """What Karpenter makes of an error of CreateFleet (karpenter-provider-aws, combineFleetErrors)."""
        if code in _NO_CAPACITY:
            return cls(kind="InsufficientCapacity", message=f"with fleet error(s), {code}: {words_of(code)}")
        known = (of_code for begins, of_code in _REASONS.items() if code.startswith(begins))
        reason, message = next(known, ("LaunchFailed", "Instance launch failed"))
        return cls(kind="CreateError", reason=reason, message=message)


@dataclass(frozen=True, kw_only=True)
class Offering:
    """Offerings of this type, zone and market; each that is left out may be any."""

    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    name: str
    node: str
    wanted: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        zone = self.wanted["labels"].get(_ZONE, "")
        return {**self.wanted, "name": self.name, "providerID": f"aws:///{zone}/{self.name}"}

    def spec(self, *, brings_plugin: bool) -> NodeSpec:
        taints = [Taint(key=t["key"], value=t.get("value", ""), effect=t["effect"]) for t in self.wanted["taints"]]
        capacity = self.wanted["capacity"]
        return NodeSpec(
            name=self.node,
            labels={**self.wanted["labels"], "kubernetes.io/hostname": self.node},
            taints=[*taints, _UNINITIALIZED],
            provider_id=self.to_json()["providerID"],
            cpus=whole(capacity["cpu"]),
            memory_bytes=whole(capacity["memory"]),
            gpus=whole(capacity.get(GPU, 0)),
            device_plugin_builtin=brings_plugin,
        )


class MachineCloud:
    """Launches and ends machines for Karpenter. What a test sets here holds from the next launch on.

    Attributes:
        refusal: What each launch is refused with; None launches.
        unavailable: Offerings that are not to be had, which Karpenter knows before it launches.
        joins: Whether machines join the cluster, as they do not with a bad image or without a route.
        brings_plugin: Whether their image carries NVIDIA's device plugin.
        end_seconds: How long a machine takes to end once Karpenter has told it to.
    """

    def __init__(self, agent: NodeAgent, control_plane: ControlPlane, *, zones: Sequence[str]) -> None:
        self.types = [each.to_json(zones) for each in TYPES]
        self._agent = agent
        self._control_plane = control_plane
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._machines: dict[str, _Machine] = {}
        self._joining: dict[str, Future[None]] = {}
        self._ending: set[str] = set()
        self._work = ThreadPoolExecutor(32, thread_name_prefix="karpenter-machines")
        self._stopping = threading.Event()
        self._server = LoopbackServer(self._answer, name="karpenter-cloud")
        self.url = self._server.url
        self.launches = 0
        self.reset()

    def reset(self) -> None:
        """All goes well from now on."""
        self.refusal: Refusal | None = None
        self.unavailable: tuple[Offering, ...] = ()
        self.joins = True
        self.brings_plugin = True
        self.end_seconds = 0.5

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._stopping.set()
        self._server.stop()
        self._work.shutdown()

    def nodes(self) -> list[str]:
        """The Nodes of the machines that there are, or that they will be once they have joined."""
        with self._lock:
            return [machine.node for machine in self._machines.values()]

    def lose(self, node: str) -> None:
        """End the machine of this Node at once, as one that has died; its Node goes with it."""
        with self._lock:
            name = next(name for name, machine in self._machines.items() if machine.node == node)
            del self._machines[name]
        self._agent.remove_node(node)

    def _answer(self, request: Request) -> Reply:
        where = request.path.strip("/").split("/")
        match request.method, *where:
            case "GET", "unavailable":
                return Reply(body=[_offering(each) for each in self.unavailable])
            case "GET", "machines":
                with self._lock:
                    return Reply(body=[machine.to_json() for machine in self._machines.values()])
            case "POST", "machines":
                return self._launch(request.body)
            case "GET", "machines", name:
                found = self._machines.get(name)
                return Reply(body=found.to_json()) if found else Reply(status=HTTPStatus.NOT_FOUND)
            case "DELETE", "machines", name:
                return self._end(name)
        return Reply(status=HTTPStatus.BAD_REQUEST)

    def _launch(self, wanted: Mapping[str, Any]) -> Reply:
        with self._lock:
            self.launches += 1
            if refused := self.refusal:
                body = {"kind": refused.kind, "reason": refused.reason, "message": refused.message}
                return Reply(status=HTTPStatus.CONFLICT, body=body)
            number = next(self._numbers)
            name = f"i-{number:017x}"
            machine = _Machine(name=name, node=f"ip-10-0-{number // 256}-{number % 256}.ec2.internal", wanted=wanted)
            self._machines[name] = machine
        if self.joins:
            spec = machine.spec(brings_plugin=self.brings_plugin)
            self._joining[name] = self._work.submit(self._join, machine, spec)
        return Reply(body=machine.to_json())

    def _join(self, machine: _Machine, spec: NodeSpec) -> None:
        self._agent.add_node(spec)
        while not self._is_over(machine) and _UNREGISTERED in self._taints(machine.node):
            self._stopping.wait(_POLL)
        self._stopping.wait(_READY_AFTER)
        while not self._is_over(machine) and _UNINITIALIZED.key in self._taints(machine.node):
            self._initialize(machine.node)

    def _is_over(self, machine: _Machine) -> bool:
        with self._lock:
            return self._stopping.is_set() or machine.name in self._ending or machine.name not in self._machines

    def _taints(self, node: str) -> set[str]:
        status, found = self._control_plane.request("GET", f"/api/v1/nodes/{node}")
        return {taint["key"] for taint in found["spec"].get("taints", ())} if status == HTTPStatus.OK else set()

    def _initialize(self, node: str) -> None:
        """Take the cloud's own taint off a Node, unless another has changed it meanwhile."""
        path = f"/api/v1/nodes/{node}"
        status, found = self._control_plane.request("GET", path)
        if status != HTTPStatus.OK:
            return
        left = [taint for taint in found["spec"].get("taints", ()) if taint["key"] != _UNINITIALIZED.key]
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": {"taints": left}}
        self._control_plane.request("PATCH", path, body, content_type="application/merge-patch+json")

    def _end(self, name: str) -> Reply:
        with self._lock:
            if name not in self._machines:
                return Reply(status=HTTPStatus.NOT_FOUND)
            if name not in self._ending:
                self._ending.add(name)
                self._work.submit(self._shut_down, self._machines[name])
        return Reply()

    def _shut_down(self, machine: _Machine) -> None:
        self._stopping.wait(self.end_seconds)
        if joining := self._joining.get(machine.name):
            wait([joining])
        # Its Node is Karpenter's to remove, once it has heard that the machine is gone.
        self._agent.remove_node(machine.node, delete_object=False)
        with self._lock:
            self._machines.pop(machine.name, None)


def _offering(each: Offering) -> dict[str, str]:
    return {"instanceType": each.instance_type, "zone": each.zone, "capacityType": each.capacity_type}
