"""A small provisioner: it does to the sandbox's cluster what Karpenter, Auto Mode or an autoscaler of others does.

Pods that wait and select its labels get a node, with the events of the provisioner that it plays; a node on which no
pod runs goes after a moment, once the pod that it was brought for is not waiting. Karpenter's and Auto Mode's keep a
NodeClaim for each of their machines.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
GROUP, EC2_GROUP = "karpenter.sh", "karpenter.k8s.aws"
_KINDS = (
    ("NodePool", GROUP, "nodepools"),
    ("NodeClaim", GROUP, "nodeclaims"),
    ("EC2NodeClass", EC2_GROUP, "ec2nodeclasses"),
)
_WARDEN = "gke-warden"
_LOOK_EVERY = 0.2
_PATIENCE = 200.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which provisioner is played.

    Attributes:
        source: The component that its events name.
        labels: What pods select, and nodes get.
        reason, message: Of the event when a node is asked for; `{name}` is the machine's.
        claims: It keeps NodeClaims.
        brings_plugin: Its nodes bring NVIDIA's device plugin.
        keeps_for_evictable: Labels whose nodes it brings only for pods that may be evicted, as Autopilot does with spot
            and compute classes (buildkite/agent-stack-k8s#849).
        manages_namespaces: Users may write nothing into kube-system, as on Autopilot (cert-manager#3713).
    """

    source: str
    labels: Mapping[str, str]
    reason: str
    message: str
    claims: bool = False
    brings_plugin: bool = False
    keeps_for_evictable: frozenset[str] = frozenset()
    manages_namespaces: bool = False


@dataclass
class _Node:
    name: str
    pod: str
    joined: bool = False
    empty_since: float | None = None


@dataclass
class Provisioner:
    """Runs in a thread of its own, as a context manager.

    Args:
        failures: Launches that fail first, for want of capacity.
        boot_seconds: From the event to the node.
        keep_seconds: How long a node stays without pods.
        boots, goes: What a test has to have seen before a node joins, and before it goes; waited for some minutes.
    """

    sandbox: Sandbox
    kind: Kind
    failures: int = 0
    boot_seconds: float = 0.5
    keep_seconds: float = 1.0
    boots: Callable[[], bool] = lambda: True
    goes: Callable[[], bool] = lambda: True
    brought: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        api = config.new_client_from_config(str(self.sandbox.kubeconfig))
        self._core = client.CoreV1Api(api)
        self._objects = client.CustomObjectsApi(api)
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
            if not node.joined or node.pod in waiting or node.name in busy:
                node.empty_since = None
            elif node.empty_since is None:
                node.empty_since = time.monotonic()
            elif self._has_been_kept(time.monotonic() - node.empty_since):
                self._remove(node.name)

    def _has_been_kept(self, seconds: float) -> bool:
        return seconds > self.keep_seconds and (self.goes() or seconds > _PATIENCE)

    def _is_for_us(self, pod: Any) -> bool:
        selector = pod.spec.node_selector or {}
        annotations = pod.metadata.annotations or {}
        if annotations.get(SAFE_TO_EVICT) == "false" and self.kind.keeps_for_evictable & selector.keys():
            return False
        return pod.spec.node_name is None and self.kind.labels.items() <= selector.items()

    # -- bringing ----------------------------------------------------------------------------------------------

    def _serve(self, pod: Any) -> None:
        name = f"gpu-{next(self._numbers):05d}"
        if self.failures:
            self.failures -= 1
            message = f"NodeClaim {name} event: creating instance, insufficient capacity, no g6.xlarge in us-west-2a"
            self._event("NodeClaim", name, "default", "", "Warning", "InsufficientCapacityError", message)
            return
        self._served.add(pod.metadata.uid)
        self._nodes[name] = _Node(name, pod.metadata.uid)
        if self.kind.claims:
            self._claim(name)
        self._event(
            "Pod",
            pod.metadata.name,
            pod.metadata.namespace,
            pod.metadata.uid,
            "Normal",
            self.kind.reason,
            self.kind.message.format(name=name),
        )
        time.sleep(self.boot_seconds)
        until = time.monotonic() + _PATIENCE
        while not self.boots() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        self.sandbox.agent.add_node(
            NodeSpec(
                name=name,
                gpus=1,
                labels=self.kind.labels,
                provider_id=f"aws:///us-west-2a/i-{name}",
                device_plugin_builtin=self.kind.brings_plugin,
            )
        )
        self.brought.append(name)
        self._nodes[name].joined = True

    def _claim(self, name: str) -> None:
        launched = {"type": "Launched", "status": "True", "lastTransitionTime": _now()}
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "labels": dict(self.kind.labels)},
            "spec": {},
            "status": {"conditions": [launched], "providerID": f"aws:///us-west-2a/i-{name}", "nodeName": name},
        }
        self._objects.create_cluster_custom_object(GROUP, "v1", "nodeclaims", body)

    def _remove(self, name: str) -> None:
        del self._nodes[name]
        if self.kind.claims:
            self._objects.delete_cluster_custom_object(GROUP, "v1", "nodeclaims", name)
        self.sandbox.agent.remove_node(name)

    def _event(self, about: str, name: str, namespace: str, uid: str, type: str, reason: str, message: str) -> None:
        body = {
            "metadata": {"generateName": f"{name}.", "namespace": namespace},
            "involvedObject": {"kind": about, "name": name, "namespace": namespace, "uid": uid},
            "type": type,
            "reason": reason,
            "message": message,
            "source": {"component": self.kind.source},
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
        }
        self._core.create_namespaced_event(namespace, body)


def _is_daemon(pod: Any) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- Autopilot's namespaces --------------------------------------------------------------------------------------


def manage_namespaces(sandbox: Sandbox) -> None:
    """Refuse users' writes to kube-system, in GKE Warden's words; returns when it is so.

    Pods and events stay as they are: the sandbox's kubelets write them, as the administrator that users are, too.
    """
    message = '\'GKE Warden authz [denied by managed-namespaces-limitation]: the namespace "kube-system" is managed and'
    writes = ["CREATE", "UPDATE", "DELETE"]
    # A namespaceSelector matches what is in no namespace, too: Nodes.
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "Namespaced"}
    policy = {
        "metadata": {"name": _WARDEN},
        "spec": {
            "matchConstraints": {
                "resourceRules": [{**everything, "operations": writes}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            },
            "matchConditions": [
                {"name": "users", "expression": "!request.userInfo.username.startsWith('system:')"},
                {"name": "writes-of-users", "expression": "!(request.resource.resource in ['pods', 'events'])"},
            ],
            "validations": [
                {
                    "expression": "false",
                    "messageExpression": message
                    + """ the request\\'s verb "' + request.operation.lowerAscii() + '" is denied'""",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = {"metadata": {"name": _WARDEN}, "spec": {"policyName": _WARDEN, "validationActions": ["Deny"]}}
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    api.create_validating_admission_policy(policy)
    api.create_validating_admission_policy_binding(binding)
    _until(lambda: _is_managed(sandbox))


def release_namespaces(sandbox: Sandbox) -> None:
    """Let users write to kube-system again."""
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    api.delete_validating_admission_policy_binding(_WARDEN)
    api.delete_validating_admission_policy(_WARDEN)
    _until(lambda: not _is_managed(sandbox))


def _is_managed(sandbox: Sandbox) -> bool:
    core = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    try:
        core.create_namespaced_config_map("kube-system", {"metadata": {"generateName": "probe-"}}, dry_run="All")
    except ApiException as error:
        if error.status != 403:
            raise
        return True
    return False


# -- Karpenter's own kinds of object ---------------------------------------------------------------------------


def install_karpenter(sandbox: Sandbox) -> None:
    """Teach the cluster what NodePools and NodeClaims are."""
    api = client.ApiextensionsV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for kind, group, plural in _KINDS:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        api.create_custom_resource_definition(
            {
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "scope": "Cluster",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                    "versions": [version],
                },
            }
        )
    _until(lambda: all(_served(sandbox, group, plural) for _, group, plural in _KINDS))


def uninstall_karpenter(sandbox: Sandbox) -> None:
    """Let the cluster forget them, with their objects."""
    api = client.ApiextensionsV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for _, group, plural in _KINDS:
        api.delete_custom_resource_definition(f"{plural}.{group}")
    _until(lambda: not any(_served(sandbox, group, plural) for _, group, plural in _KINDS))


def node_pool(sandbox: Sandbox, name: str, *, group: str, **template: Any) -> None:
    """Make a NodePool; `group` is its node class's API group, `template` more of its template's spec."""
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    spec = {"nodeClassRef": {"group": group, "kind": "NodeClass", "name": "default"}, **template}
    body = {"apiVersion": f"{GROUP}/v1", "kind": "NodePool", "metadata": {"name": name}}
    objects.create_cluster_custom_object(GROUP, "v1", "nodepools", {**body, "spec": {"template": {"spec": spec}}})


def ec2_node_class(sandbox: Sandbox, name: str, *, alias: str) -> None:
    """Make an EC2NodeClass; `alias` says which images its machines run."""
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    body: dict[str, Any] = {"apiVersion": f"{EC2_GROUP}/v1", "kind": "EC2NodeClass", "metadata": {"name": name}}
    body["spec"] = {"amiSelectorTerms": [{"alias": alias}]}
    objects.create_cluster_custom_object(EC2_GROUP, "v1", "ec2nodeclasses", body)


def _served(sandbox: Sandbox, group: str, plural: str) -> bool:
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    try:
        objects.list_cluster_custom_object(group, "v1", plural)
    except ApiException as error:
        if error.status == 404:
            return False
        raise
    return True


def _until(is_so: Any, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.1)
