"""A small provisioner: it does to the sandbox's cluster what Karpenter, Auto Mode or an autoscaler of others does.

Pods that wait and select its labels get a node, with the events of the provisioner that it plays; a node on which no
pod runs goes after a moment, once the pod that it was brought for is not waiting. What Karpenter and Auto Mode keep
and say besides is in karpenter_standin.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import NotFoundException

from gpu_sandbox.nodes import NodeSpec, Taint
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.karpenter_objects import event, rfc3339
from tests.sandbox.karpenter_standin import PLACE, Karpenter, of_pod
from tests.sandbox.managed_namespaces import manage_namespaces, release_namespaces

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_LOOK_EVERY = 0.2
_PATIENCE = 200.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which provisioner is played.

    Attributes:
        source: The component that its events name.
        labels: What pods select, and nodes get.
        reason, message: Of the event when a node is asked for; `{name}` is the machine's.
        node_pool: The NodePool that it brings nodes by, with a NodeClaim for each; empty where it has no such thing.
        brings_plugin: Its nodes bring NVIDIA's device plugin.
        keeps_for_evictable: Labels whose nodes it brings only for pods that may be evicted, as Autopilot does with spot
            and compute classes (buildkite/agent-stack-k8s#849).
        taints: What its nodes carry.
        manages_namespaces: Users may write nothing into kube-system, as on Autopilot (cert-manager#3713).
    """

    source: str
    labels: Mapping[str, str]
    reason: str
    message: str
    node_pool: str = ""
    brings_plugin: bool = False
    keeps_for_evictable: frozenset[str] = frozenset()
    taints: tuple[Taint, ...] = ()
    manages_namespaces: bool = False


@dataclass
class _Node:
    """A machine, from the moment of asking for it: `since` is when its state began."""

    name: str
    pod: str
    state: str = "asked"  # then launched, joined, ending
    since: float = field(default_factory=time.monotonic)
    empty_since: float | None = None
    is_expiring: bool = False

    def turns(self, state: str) -> None:
        self.state, self.since = state, time.monotonic()

    @property
    def seconds(self) -> float:
        """How long its state has lasted."""
        return time.monotonic() - self.since


@dataclass
class Provisioner:
    """Runs in a thread of its own, as a context manager.

    Args:
        failures: Launches that fail first, for want of capacity; `stock_out` is what the cloud says of them.
        refusal: Reason and message of the cloud's refusal, as long as it launches nothing.
        boot_seconds: From the launch to the node.
        keep_seconds: How long a node stays without pods.
        end_seconds: How long a machine takes to end, while its node stays.
        launches, boots, goes: What a test has to have seen before a machine is launched, before its node joins, and
            before it goes; waited for some minutes.
    """

    sandbox: Sandbox
    kind: Kind
    failures: int = 0
    stock_out: str = "creating instance, insufficient capacity, no g6.xlarge in us-west-2a"
    refusal: tuple[str, str] = ("", "")
    boot_seconds: float = 0.5
    keep_seconds: float = 1.0
    end_seconds: float = 0.5
    launches: Callable[[], bool] = lambda: True
    boots: Callable[[], bool] = lambda: True
    goes: Callable[[], bool] = lambda: True
    brought: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        api = config.new_client_from_config(str(self.sandbox.kubeconfig))
        self._core = client.CoreV1Api(api)
        kind = self.kind
        self._karpenter = Karpenter(api, kind.node_pool, kind.labels, kind.source) if kind.node_pool else None
        self._nodes: dict[str, _Node] = {}
        self._served: set[str] = set()
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioner")
        self.error: Exception | None = None

    def __enter__(self) -> Provisioner:
        if self.kind.manages_namespaces:
            manage_namespaces(self.sandbox)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for name in list(self._nodes):
            self._remove(name)
        if self.kind.manages_namespaces:
            release_namespaces(self.sandbox)
        if self.error is not None and error is None:
            raise self.error

    @property
    def nodes(self) -> list[str]:
        """The machines that there are now, on their way too."""
        return list(self._nodes)

    def expire(self, name: str) -> None:
        """Let a node's time be over, with the pods that run on it (terminator/events/events.go)."""
        self._nodes[name].is_expiring = True

    def _run(self) -> None:
        try:
            while not self._over.wait(_LOOK_EVERY):
                self._look()
        except Exception as error:  # noqa: BLE001 - raised again by whoever leaves the context
            self.error = error

    def _look(self) -> None:
        pods = self._core.list_pod_for_all_namespaces().items
        for pod in pods:
            if self._is_for_us(pod) and pod.metadata.uid not in self._served:
                self._serve(pod)
        waiting = {pod.metadata.uid for pod in pods if pod.spec.node_name is None}
        busy = {p.spec.node_name for p in pods if not _is_daemon(p) and p.status.phase in ("Pending", "Running")}
        for node in list(self._nodes.values()):
            if node.state in ("asked", "launched"):
                self._bring(node)
            elif node.state == "joined":
                self._look_after(node, pods, is_wanted=node.pod in waiting or node.name in busy)
            elif node.seconds > self.end_seconds and node.name not in busy:
                self._remove(node.name)

    def _is_for_us(self, pod: Any) -> bool:
        selector = pod.spec.node_selector or {}
        annotations = pod.metadata.annotations or {}
        if annotations.get(SAFE_TO_EVICT) == "false" and self.kind.keeps_for_evictable & selector.keys():
            return False
        return pod.spec.node_name is None and self.kind.labels.items() <= selector.items()

    # -- bringing ----------------------------------------------------------------------------------------------

    def _serve(self, pod: Any) -> None:
        if self._karpenter and not self._karpenter.takes(pod, nodes=len(self._nodes)):
            return
        name = f"{self.kind.node_pool or 'gpu'}-{next(self._numbers):05d}"
        if self._karpenter:
            self._karpenter.asks(name)
            if self.failures:
                self.failures -= 1
                self._karpenter.fails(name, self.stock_out)
                return
        self._served.add(pod.metadata.uid)
        self._nodes[name] = _Node(name, pod.metadata.uid)
        said = event(
            of_pod(pod),
            "Normal",
            self.kind.reason,
            self.kind.message.format(name=name),
            at=rfc3339(datetime.now(UTC)),
            by=self.kind.source,
        )
        self._core.create_namespaced_event(pod.metadata.namespace, said)

    def _bring(self, node: _Node) -> None:
        if node.state == "asked" and (self.launches() or node.seconds > _PATIENCE):
            if self._karpenter:
                self._karpenter.launches(node.name)
            node.turns("launched")
        elif node.state == "asked":
            assert self._karpenter, "only Karpenter's claims can say so"
            self._karpenter.is_refused(node.name, *self.refusal)
        elif node.seconds > self.boot_seconds and (self.boots() or node.seconds > _PATIENCE):
            self.sandbox.agent.add_node(
                NodeSpec(
                    name=node.name,
                    gpus=1,
                    labels={**self.kind.labels, **(PLACE if self._karpenter else {})},
                    taints=self.kind.taints,
                    provider_id=f"aws:///us-west-2a/i-{node.name}",
                    device_plugin_builtin=self.kind.brings_plugin,
                )
            )
            if self._karpenter:
                self._karpenter.joins(node.name, node.name)
            self.brought.append(node.name)
            node.turns("joined")

    # -- keeping and removing ------------------------------------------------------------------------------------

    def _look_after(self, node: _Node, pods: list[Any], *, is_wanted: bool) -> None:
        if self._karpenter:
            self._karpenter.is_initialized(node.name, node.name)
        if node.is_expiring:
            here = (pod for pod in pods if pod.spec.node_name == node.name and not _is_daemon(pod))
            self._expire(node, [pod for pod in here if pod.status.phase in ("Pending", "Running")])
        elif is_wanted:
            node.empty_since = None
        elif node.empty_since is None:
            node.empty_since = time.monotonic()
        elif self._has_been_kept(time.monotonic() - node.empty_since):
            self._end(node, "Empty")

    def _has_been_kept(self, seconds: float) -> bool:
        return seconds > self.keep_seconds and (self.goes() or seconds > _PATIENCE)

    def _end(self, node: _Node, why: str) -> None:
        if self._karpenter:
            if why == "Empty" and self._karpenter.keeps(node.name, node.name):
                return
            self._karpenter.ends(node.name, node.name, why)
            node.turns("ending")
        else:
            self._remove(node.name)

    def _expire(self, node: _Node, pods: list[Any]) -> None:
        assert self._karpenter, "others' nodes do not expire"
        self._end(node, "Expired")
        for pod in pods:
            at = datetime.now(UTC)
            has = pod.spec.termination_grace_period_seconds
            self._karpenter.tell(
                of_pod(pod),
                "Normal",
                "Disrupted",
                f"Deleting the pod to accommodate the terminationTime {at:%Y-%m-%d %H:%M:%S} +0000 UTC of the node."
                f" The pod was granted {has} seconds of grace-period of its {has} terminationGracePeriodSeconds."
                " This bypasses the PDB of the pod and the do-not-disrupt annotation.",
            )
            with suppress(NotFoundException):  # it has gone since it was listed
                self._core.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace)

    def _remove(self, name: str) -> None:
        del self._nodes[name]
        self.sandbox.agent.remove_node(name)
        if self._karpenter:
            self._karpenter.gone(name)


def _is_daemon(pod: Any) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ())
