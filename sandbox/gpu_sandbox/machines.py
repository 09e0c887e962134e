"""The life of each cloud instance as the cluster sees it: boot, Node, drain, gone.

The cloud reports what happened to instances (`CloudEvents`); this module turns it into Nodes of the node agent, and
into what EKS and GKE themselves do to Nodes: cordon and evict before an instance ends, delete the Node after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Protocol

from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.faults import Faults, GpuUse
from gpu_sandbox.nodes import NodeAgent, NodeAgentError, NodeSpec
from gpu_sandbox.nodes.spec import TaintLike
from gpu_sandbox.workers import Workers

_TICK_SECONDS = 0.1
_RETRY_SECONDS = 0.2
# At most, between requests to evict that were refused; kubectl's.
_REFUSED_SECONDS = 5.0
_REJOIN_SECONDS = 1.0
# From a node's registration to the labels and taints that EKS adds to it; some seconds to minutes in reality.
_LATE_SECONDS = 3.0
# Seconds of a shutdown that a kubelet reserves to report the ends of its pods.
_SHUTDOWN_MARGIN = 0.5
_GONE_WITHIN = timedelta(seconds=10)
_MERGE = "application/merge-patch+json"

_log = logging.getLogger(__name__)


class Instance(Protocol):
    """An instance of either cloud."""

    @property
    def instance_id(self) -> str: ...
    @property
    def node_name(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def market(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def taints(self) -> Sequence[TaintLike]: ...
    @property
    def at_registration(self) -> Instance:
        """The same, with the labels and taints that its kubelet registers with; the cloud adds the others later."""
        ...


@dataclass
class _Machine:
    instance: Instance
    launched_at: float
    join_after: float = 0.0
    state: str = "booting"  # booting -> joined -> draining; booting -> ending where it was drained before it joined

    @property
    def node_name(self) -> str:
        return self.instance.node_name


class Machines:
    """Keeps the cluster's Nodes in step with the cloud's instances. Implements the clouds' `CloudEvents`.

    An instance becomes a Node `faults.boot_seconds` (else `boot_seconds`) after its launch; the fault is looked
    at anew until then, so that ending a slow boot lets those that wait join at once. `node_spec` says what an
    instance's kubelet would register; with `shuts_down_at_notice` it ends its pods when its spot instance has its
    notice, as GKE's does, rather than run them into the end. With `drains_only_ready_nodes` the drain of another Node
    is left to the time that the cloud has for it, as EKS does.
    """

    def __init__(
        self,
        *,
        control_plane: ControlPlane,
        agent: NodeAgent,
        faults: Faults,
        clock: Clock,
        boot_seconds: float,
        node_spec: Callable[[Any], NodeSpec],
        node_joined: Callable[[str], None],
        complete_drain: Callable[[str], None],
        shuts_down_at_notice: bool = False,
        drains_only_ready_nodes: bool = False,
    ) -> None:
        self._control_plane = control_plane
        self._agent = agent
        self._faults = faults
        self._clock = clock
        self._boot_seconds = boot_seconds
        self._node_spec = node_spec
        self._node_joined = node_joined
        self._complete_drain = complete_drain
        self._shuts_down_at_notice = shuts_down_at_notice
        self._drains_only_ready_nodes = drains_only_ready_nodes
        self._machines: dict[str, _Machine] = {}
        self._removing: set[str] = set()
        self._lock = threading.Lock()
        self._plugin_was_ready = self._driver_was_ready = True
        self._shown_uses: list[GpuUse] = []
        self._workers = Workers(clock, name="sandbox-machine")
        self._loop = clock.loop(self._step, poll=_TICK_SECONDS, name="sandbox-machines")

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._workers.stop()

    def booting(self) -> list[dict[str, str]]:
        """The instances that have no Node yet."""
        with self._lock:
            machines = [m for m in self._machines.values() if m.state == "booting"]
        return [{"instance_id": m.instance.instance_id, "name": m.node_name, "zone": m.instance.zone} for m in machines]

    def spot_instances(self) -> list[Instance]:
        """Spot instances that have not ended, including booting ones."""
        with self._lock:
            return [m.instance for m in self._machines.values() if m.instance.market == "spot"]

    # What the cloud reports

    def instance_launched(self, instance: Instance) -> None:
        with self._lock:
            self._machines[instance.instance_id] = _Machine(instance, self._clock.now())
        self._loop.wake()

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        with self._lock:
            machine = self._machines.get(after.instance_id)
            if machine is not None:
                machine.instance = after
        if machine is not None:
            self._workers.submit(self._relabel, machine, before, after)

    def drain_requested(self, instance: Instance) -> None:
        self._workers.submit(self._drain, instance)

    def rebalance_recommended(self, instance: Instance) -> None:
        self._workers.submit(
            self._record, instance, "SpotRebalanceRecommendation", "is at an elevated risk of being taken back"
        )

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        self._workers.submit(self._record, instance, "SpotInterruption", f"is taken back at {at.isoformat()}")
        if self._shuts_down_at_notice:
            seconds = (at - self._clock.utc_now()).total_seconds() - _SHUTDOWN_MARGIN
            self._workers.submit(self._shut_down, instance, max(seconds, 0.0))

    def instance_terminated(self, instance: Instance) -> None:
        with self._lock:
            machine = self._machines.pop(instance.instance_id, None)
            joined = machine is not None and machine.state in ("joined", "draining")
            if joined:
                self._removing.add(instance.node_name)
        if machine and joined:
            self._workers.submit(self._remove, machine)

    # Booting

    def _step(self) -> None:
        self._tell_agent_of_faults()
        for machine in self._booted():
            self._workers.submit(self._join, machine)

    def _tell_agent_of_faults(self) -> None:
        ready = not self._faults.device_plugin_never_ready
        if ready != self._plugin_was_ready:
            self._agent.set_device_plugin_ready(ready)
            self._plugin_was_ready = ready
        ready = not self._faults.driver_never_ready
        if ready != self._driver_was_ready:
            self._agent.set_driver_ready(ready)
            self._driver_was_ready = ready
        uses = self._faults.gpu_uses
        if uses != self._shown_uses:
            self._agent.show_gpu_uses([asdict(use) for use in uses])
            self._shown_uses = uses

    def _booted(self) -> list[_Machine]:
        fault = self._faults.boot_seconds
        boot_seconds = self._boot_seconds if fault is None else fault
        with self._lock:
            booted = [
                machine
                for machine in self._machines.values()
                if machine.state == "booting"
                and self._clock.reached(max(machine.launched_at + boot_seconds, machine.join_after))
                # A group may recreate a lost instance under the name of one whose Node is still being deleted.
                and machine.node_name not in self._removing
            ]
            for machine in booted:
                machine.state = "joined"
        return booted

    def _join(self, machine: _Machine) -> None:
        joins_as = machine.instance
        try:
            self._agent.add_node(self._node_spec(joins_as.at_registration))
        except NodeAgentError:
            _log.exception("%s could not join; it tries again", machine.node_name)
            with self._lock:
                if machine.state == "joined":
                    machine.state, machine.join_after = "booting", self._clock.now() + _REJOIN_SECONDS
            self._loop.wake()
            return
        self._node_joined(joins_as.instance_id)
        with self._lock:
            ended_meanwhile = machine.instance.instance_id not in self._machines
        if ended_meanwhile:
            self._remove(machine)
        elif joins_as.at_registration is not joins_as:
            self._workers.pause(_LATE_SECONDS)
            self._relabel(machine, joins_as.at_registration, machine.instance)
        elif machine.instance is not joins_as:
            self._relabel(machine, joins_as, machine.instance)

    # Ending

    def _drain(self, instance: Instance) -> None:
        """What EKS does when a managed group's instance is about to end: cordon, evict, then let it go."""
        with self._lock:
            machine = self._machines.get(instance.instance_id)
            if machine is None:
                return
            joined = machine.state == "joined"
            machine.state = "draining" if joined else "ending"
        if joined:
            self._cordon(machine.node_name)
            if self._drains_only_ready_nodes and self._is_unready(machine.node_name):
                return
            pause = _RETRY_SECONDS
            while self._lives(machine) and (pods := self._pods_to_evict(machine.node_name)):
                accepted = [self._evict(pod) for pod in pods]
                # Pods end in real time; a refusal stands until the cluster's own time has passed.
                if any(accepted) and not all(map(_should_be_gone, pods)):
                    self._workers.wait(_RETRY_SECONDS)
                else:
                    self._workers.pause(pause)
                    pause = min(2 * pause, _REFUSED_SECONDS)
        if self._lives(machine):
            self._complete_drain(instance.instance_id)

    def _shut_down(self, instance: Instance, seconds: float) -> None:
        """What a kubelet does at the notice. Its pods end in real time, even where the notice is by another clock."""
        self._agent.shut_down_node(instance.node_name, seconds=seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._pods_to_evict(instance.node_name):
            self._workers.wait(_RETRY_SECONDS)

    def _lives(self, machine: _Machine) -> bool:
        with self._lock:
            return machine.instance.instance_id in self._machines and not self._workers.stopping.is_set()

    def _cordon(self, node_name: str) -> None:
        self._call(
            "PATCH",
            f"/api/v1/nodes/{node_name}",
            {"spec": {"unschedulable": True}},
            content_type="application/strategic-merge-patch+json",
        )

    def _is_unready(self, node_name: str) -> bool:
        _, node = self._call("GET", f"/api/v1/nodes/{node_name}")
        conditions = node.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)

    def _pods_to_evict(self, node_name: str) -> list[dict[str, Any]]:
        """Those that `kubectl drain --ignore-daemonsets` would evict and that still run."""
        _, pods = self._call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}")
        return [pod for pod in pods.get("items", []) if _is_evicted_by_drain(pod)]

    def _evict(self, pod: dict[str, Any]) -> bool:
        """Request it again on each round: a PodDisruptionBudget may refuse (429) for a while. False if it did."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        status, _ = self._call(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods/{name}/eviction",
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
            },
        )
        return status != HTTPStatus.TOO_MANY_REQUESTS

    def _remove(self, machine: _Machine) -> None:
        """The machine is gone, and its processes with it; then the Node, as EKS's node controller does."""
        try:
            self._agent.remove_node(machine.node_name, delete_object=False)
            self._call("DELETE", f"/api/v1/nodes/{machine.node_name}")
        finally:
            with self._lock:
                self._removing.discard(machine.node_name)
            self._loop.wake()

    def _relabel(self, machine: _Machine, before: Instance, after: Instance) -> None:
        """Replace the cloud's old labels and taints with its new ones; others on the Node are not touched."""
        with self._lock:
            # One that has yet to join will do so with the new ones.
            if machine.state == "booting":
                return
        node = f"/api/v1/nodes/{after.node_name}"
        self._agent.set_node_labels(after.node_name, after.labels)
        labels: dict[str, str | None] = {key: None for key in before.labels if key not in after.labels}
        self._call("PATCH", node, {"metadata": {"labels": labels | dict(after.labels)}}, content_type=_MERGE)
        status: int = HTTPStatus.CONFLICT
        while status == HTTPStatus.CONFLICT and not self._workers.stopping.is_set():
            status, item = self._call("GET", node)
            if status == HTTPStatus.OK:
                version = {"resourceVersion": item["metadata"]["resourceVersion"]}
                taints = _retainted(item["spec"].get("taints") or [], before, after)
                patch = {"metadata": version, "spec": {"taints": taints or None}}
                status, _ = self._call("PATCH", node, patch, content_type=_MERGE)

    def _record(self, instance: Instance, reason: str, message: str) -> None:
        now = self._clock.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        node = instance.node_name
        self._call(
            "POST",
            "/api/v1/namespaces/default/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{node}."},
                "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
                "type": "Warning",
                "reason": reason,
                "message": f"spot instance {instance.instance_id} {message}",
                "source": {"component": "cloud"},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

    def _call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """One call, repeated while the API server is away: the cloud does not wait, and nothing may be forgotten.

        It may be away for as long as the cloud's own work at it takes, by the sandbox's clock.
        """
        while True:
            try:
                status, reply = self._control_plane.request(method, path, body, content_type=content_type)
            except OSError:
                status, reply = HTTPStatus.SERVICE_UNAVAILABLE, {}
            if status < HTTPStatus.INTERNAL_SERVER_ERROR or self._workers.pause(_RETRY_SECONDS):
                return status, reply


def _is_evicted_by_drain(pod: dict[str, Any]) -> bool:
    owners = pod["metadata"].get("ownerReferences", [])
    return pod["status"].get("phase") not in ("Succeeded", "Failed") and not any(
        owner["kind"] in ("DaemonSet", "Node") for owner in owners
    )


def _should_be_gone(pod: dict[str, Any]) -> bool:
    """Whether its grace period is long over: something else keeps the object, a finalizer, and may do so for ever."""
    told = pod["metadata"].get("deletionTimestamp")
    return bool(told) and datetime.now(UTC) > datetime.fromisoformat(told) + _GONE_WITHIN


def _retainted(present: Sequence[Mapping[str, str]], before: Instance, after: Instance) -> list[Mapping[str, str]]:
    """The Node's taints with the cloud's old ones replaced by its new ones."""
    ours = {(taint.key, taint.effect) for instance in (before, after) for taint in instance.taints}
    others = [taint for taint in present if (taint["key"], taint["effect"]) not in ours]
    return others + [{"key": t.key, "value": t.value or "", "effect": t.effect} for t in after.taints]
