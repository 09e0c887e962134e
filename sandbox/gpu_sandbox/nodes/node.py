"""One Node: its object in the API, its heartbeats, its GPUs, and what it has room for."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_sandbox.nodes import clock, device_plugin, gpus, quantities
from gpu_sandbox.nodes.api import STRATEGIC_MERGE_PATCH, Api
from gpu_sandbox.nodes.efa import EfaPlugins
from gpu_sandbox.nodes.errors import ApiError
from gpu_sandbox.nodes.image_transfers import ImageTransfers
from gpu_sandbox.nodes.spec import NodeSpec

if TYPE_CHECKING:
    from gpu_sandbox.nodes.container import ContainerRunner
    from gpu_sandbox.nodes.events import Events

HOST_IP = "127.0.0.1"
LEASE_SECONDS = 40
_MAX_PODS = 110
log = logging.getLogger(__name__)


class Node:
    """A node of this agent, from its registration to its end."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        api: Api,
        events: Events,
        real_gpus: Sequence[gpus.Gpu],
        kubelet_port: int,
        folder: Path,
        plugin_allowed: bool,
        driver_allowed: bool,
        status_changed: Callable[[Node], None],
        pulls_by_hand: bool = False,
    ) -> None:
        self.spec = spec
        self.gpus = gpus.of_node(spec, real_gpus)
        self.inventory = gpus.Inventory(self.gpus, spec.one_gpu_only)
        self.pulled_images: set[str] = set()
        self.transfers = ImageTransfers(spec.image_bytes_per_second or float("inf"), by_hand=pulls_by_hand)
        self.folder = folder
        self._api = api
        self._events = events
        self._kubelet_port = kubelet_port
        self._plugin_allowed = plugin_allowed
        self._driver_allowed = driver_allowed
        self._status_changed = status_changed
        self._ready_since = clock.seconds_text(clock.now())
        self._plugins: list[ContainerRunner] = []
        self._ever_registered = False
        self._efa = EfaPlugins(spec.efa_interfaces)
        self._driver_loaded = spec.driver_seconds == 0
        self._shutting_down = False
        self._requests: dict[str, dict[str, Decimal]] = {}
        self._uid = ""

    @property
    def name(self) -> str:
        """The Node's name."""
        return self.spec.name

    @property
    def path(self) -> str:
        """The Node's place in the API."""
        return f"/api/v1/nodes/{self.name}"

    # The object ----------------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Create the Node and its Lease, or take over the ones that are there."""
        body = self._object()
        try:
            created = await self._api.create("/api/v1/nodes", body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            known = {"metadata": {"labels": body["metadata"]["labels"]}, "spec": {"providerID": self.spec.provider_id}}
            created = await self._api.patch(self.path, known)
            await self._api.patch(f"{self.path}/status", {"status": body["status"]}, STRATEGIC_MERGE_PATCH)
        self._uid = created["metadata"]["uid"]
        await self.renew_lease()
        if self.spec.driver_seconds:
            asyncio.get_running_loop().call_later(self.spec.driver_seconds, self.driver_installed)

    async def unregister(self) -> None:
        """Delete the Node and its Lease, as a cloud's node controller does for an instance that is gone."""
        await self._api.delete(self.path)
        await self._api.delete(self._lease_path)

    async def renew_lease(self) -> None:
        """The heartbeat that keeps the Node Ready."""
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": clock.micro_text(clock.now()),
        }
        try:
            await self._api.patch(self._lease_path, {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}
            metadata = {"name": self.name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            await self._create_lease({"metadata": metadata, "spec": spec})

    async def _create_lease(self, lease: Mapping[str, Any]) -> None:
        try:
            await self._api.create(self._lease_path.rpartition("/")[0], lease)
        except ApiError as error:
            if error.reason != "AlreadyExists":  # as after a request that was answered but not heard
                raise

    async def report_status(self) -> None:
        """Write conditions, capacity and allocatable."""
        status = {
            "conditions": self._conditions(),
            "capacity": self._capacity(),
            "allocatable": self.allocatable(),
        }
        await self._api.patch(f"{self.path}/status", {"status": status}, STRATEGIC_MERGE_PATCH)

    @property
    def _lease_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.name}"

    def _object(self) -> dict[str, Any]:
        machine = "arm64" if os.uname().machine == "aarch64" else "amd64"
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": machine,
        } | dict(self.spec.labels)
        taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in self.spec.taints]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"providerID": self.spec.provider_id, "taints": taints},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": HOST_IP},
                    {"type": "Hostname", "address": self.name},
                    {"type": "InternalDNS", "address": self.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet_port}},
                # Without it the API server would translate exec to SPDY, which is not spoken here.
                "declaredFeatures": ["ExtendWebSocketsToKubelet"],
                "nodeInfo": self._node_info(machine),
                "capacity": self._capacity(),
                "allocatable": self.allocatable(),
                "conditions": self._conditions(),
            },
        }

    def _node_info(self, machine: str) -> dict[str, Any]:
        identity = uuid.uuid5(uuid.NAMESPACE_DNS, self.name)
        return {
            "machineID": identity.hex,
            "systemUUID": str(identity),
            "bootID": str(uuid.uuid4()),
            "kernelVersion": os.uname().release,
            "osImage": self.spec.os_image,
            "containerRuntimeVersion": "containerd://2.1.0+process",
            "kubeletVersion": self.spec.kubernetes_version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine,
        }

    def _conditions(self) -> list[dict[str, str]]:
        now = clock.seconds_text(clock.now())
        healthy = {
            "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
        }
        if self._shutting_down:
            healthy["Ready"] = ("False", "KubeletNotReady", "node is shutting down")
        return [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since,
            }
            for kind, (status, reason, message) in healthy.items()
        ]

    def _capacity(self) -> dict[str, str]:
        capacity = {
            "cpu": str(self.spec.cpus),
            "memory": f"{self.spec.memory_bytes // 1024}Ki",
            "pods": str(_MAX_PODS),
            "ephemeral-storage": f"{self.spec.disk_bytes // 1024}Ki",
        }
        if self._ever_registered or self._registered:
            capacity[gpus.RESOURCE] = str(len(self.gpus))
        return capacity | self._efa.capacity()

    def allocatable(self) -> dict[str, str]:
        """What pods may ask for now."""
        amounts = self._capacity()
        if gpus.RESOURCE in amounts and not self._registered:
            amounts[gpus.RESOURCE] = "0"
        return amounts | self._efa.allocatable()

    def shut_down(self) -> None:
        """The machine shuts down: not Ready any more, and no new pods."""
        self._shutting_down = True
        self._ready_since = clock.seconds_text(clock.now())
        self._status_changed(self)

    # GPUs ----------------------------------------------------------------------------------------------------

    @property
    def _registered(self) -> bool:
        """Whether a device plugin serves GPUs on this node now."""
        present = self.spec.device_plugin_builtin or bool(self._plugins)
        return self.gpus_usable and self._plugin_allowed and present

    @property
    def gpus_usable(self) -> bool:
        """Whether there are GPUs, and the driver for them."""
        return bool(self.gpus) and self._driver_loaded and self._driver_allowed

    def driver_installed(self) -> None:
        """NVIDIA's driver is there now; calling it again changes nothing."""
        if not self._driver_loaded:
            before, self._driver_loaded = self._registered, True
            self._tell_plugins(were_registered=before)

    def device_plugin_started(self, runner: ContainerRunner, variables: Mapping[str, str]) -> None:
        """A device-plugin container runs on this node, with these environment variables."""
        self._plugins.append(runner)
        failing = device_plugin.fails(variables, node_has_gpus=self.gpus_usable)
        runner.logs[-1].write("stderr", device_plugin.start_log(registered=self._registered, failing=failing))
        self._registration_may_have_changed()

    def efa_plugin_started(self, runner: ContainerRunner) -> None:
        """A container of EFA's device plugin runs on this node."""
        self._efa.started(runner)
        self._status_changed(self)

    def device_plugin_ended(self, runner: ContainerRunner) -> None:
        """A container has ended; if it was a device plugin what it handed out is no longer allocatable."""
        if self._efa.ended(runner):
            self._status_changed(self)
        if runner in self._plugins:
            self._plugins.remove(runner)
            self._registration_may_have_changed()

    def allow_device_plugin(self, allowed: bool) -> None:
        """Let device plugins find the GPUs, or (a fault) keep them from it."""
        before, self._plugin_allowed = self._registered, allowed
        self._tell_plugins(were_registered=before)

    def allow_driver(self, allowed: bool) -> None:
        """Let NVIDIA's driver be there once it is installed, or (a fault) be missing."""
        before, self._driver_allowed = self._registered, allowed
        self._tell_plugins(were_registered=before)

    def _tell_plugins(self, *, were_registered: bool) -> None:
        if self._registered and not were_registered:
            for runner in self._plugins:
                runner.logs[-1].write("stderr", device_plugin.registration_log())
        self._registration_may_have_changed()

    def _registration_may_have_changed(self) -> None:
        self._ever_registered = self._ever_registered or self._registered
        self._status_changed(self)

    # Room for pods -------------------------------------------------------------------------------------------

    def admit(self, pod: Mapping[str, Any]) -> tuple[str, str] | None:
        """Take a pod in, or say (reason, message) why not."""
        uid = pod["metadata"]["uid"]
        if self._shutting_down:
            return "NodeShutdown", "the node is shutting down"
        try:
            self._allocate_gpus(pod, uid)
        except gpus.AllocationError as error:
            self.inventory.release(uid)
            return "UnexpectedAdmissionError", str(error)
        asked = {"pods": Decimal(1)} | quantities.requests(pod)
        capacity = self.allocatable()
        for resource, amount in asked.items():
            if resource not in capacity:
                continue  # the kubelet too admits pods that ask for what the node has never heard of
            used = sum((r.get(resource, Decimal(0)) for r in self._requests.values()), Decimal(0))
            if amount and used + amount > quantities.parse(capacity[resource]):
                self.inventory.release(uid)
                return f"OutOf{resource}", _no_room(resource, amount, used, quantities.parse(capacity[resource]))
        if not _selected(pod, self.spec, self.name):
            self.inventory.release(uid)
            return "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        self._requests[uid] = asked
        return None

    def release(self, pod_uid: str) -> None:
        """Take back what a pod held."""
        self._requests.pop(pod_uid, None)
        self.inventory.release(pod_uid)

    def _allocate_gpus(self, pod: Mapping[str, Any], uid: str) -> None:
        if not (self._ever_registered or self._registered):
            return
        inits = pod["spec"].get("initContainers") or []
        lasting = [c for c in inits if c.get("restartPolicy") == "Always"] + pod["spec"]["containers"]
        for container in [*lasting, *(c for c in inits if c not in lasting)]:
            limits = (container.get("resources") or {}).get("limits") or {}
            count = quantities.whole(limits.get(gpus.RESOURCE, 0))
            if container not in lasting:
                count = self.inventory.share(uid, container["name"], count)
            if count:
                self.inventory.allocate(uid, container["name"], count, healthy=self._registered)


def _no_room(resource: str, amount: Decimal, used: Decimal, capacity: Decimal) -> str:
    unit = 1000 if resource == "cpu" else 1
    figures = [int(value * unit) for value in (amount, used, capacity)]
    return (
        f"Node didn't have enough resource: {resource}, requested: {figures[0]}, used: {figures[1]}, "
        f"capacity: {figures[2]}"
    )


def _selected(pod: Mapping[str, Any], spec: NodeSpec, name: str) -> bool:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"} | dict(spec.labels)
    selector = pod["spec"].get("nodeSelector") or {}
    return all(labels.get(key, value) == value for key, value in selector.items())
