"""cluster-autoscaler for an EKS cluster: its image, objects and flags, and whether it runs.

As in kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/examples/cluster-autoscaler-autodiscover.yaml, and
config/flags/flags.go of release 1.36.1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE, read_status
from airflow_gpu_provider.cluster.leases import PART_OF
from airflow_gpu_provider.cluster.rest import ApiClient, call, list_items
from airflow_gpu_provider.errors import AutoscalerConflict, PoolSpecError
from airflow_gpu_provider.pools import EksGpuPool, GpuPool

NAME = "cluster-autoscaler"

IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler"
NEWEST = "v1.36.1"

_RELEASES = {31: "v1.31.5", 32: "v1.32.7", 33: "v1.33.5", 34: "v1.34.4", 35: "v1.35.1", 36: NEWEST}
_WATCHES_RESOURCE_V1 = 35
"""From this minor on it does so always, and never starts where there is no such API (kubernetes/autoscaler#9244)."""
_HAS_RESOURCE_V1 = 34
_MINOR = re.compile(r"v?1\.(\d+)\b")

PRIORITIES = "cluster-autoscaler-priority-expander"
"""The ConfigMap from which --expander=priority takes its order; the name is fixed."""

_LABELS = {"app.kubernetes.io/name": NAME}

_DEFAULTS: dict[str, Any] = {"expander": "least-waste", "balance-similar-node-groups": True}
_OURS = (
    "cloud-provider",
    "cluster-name",
    "kubeconfig",
    "kubernetes",
    "namespace",
    "node-group-auto-discovery",
    "nodes",
    "status-config-map-name",
    "write-status-configmap",
)
_FLAGS_OF_1_36 = """
address allowed-scheduler-names async-node-groups aws-use-static-instance-list balance-similar-node-groups
balancing-ignore-label balancing-label blocking-system-pod-distruption-timeout bypassed-scheduler-names
capacity-buffer-controller-enabled capacity-buffer-pod-dry-run-enabled capacity-buffer-pod-injection-enabled
capacity-quotas-enabled check-capacity-batch-processing check-capacity-processor-instance
check-capacity-provisioning-request-batch-timebox check-capacity-provisioning-request-max-batch-size cloud-config
cluster-snapshot-parallelism cordon-node-before-terminating cores-total daemonset-eviction-for-empty-nodes
daemonset-eviction-for-occupied-nodes debugging-snapshot-enabled drain-priority-config
dynamic-node-delete-delay-after-taint-enabled emit-per-nodegroup-metrics enable-csi-node-aware-scheduling
enable-dynamic-resource-allocation enable-proactive-scaleup enable-provisioning-requests enforce-node-group-min-size
estimator expander expendable-pods-priority-cutoff fastpath-binpacking-enabled force-delete-failed-nodes
force-delete-unregistered-nodes force-ds frequent-loops-enabled gpu-total grpc-expander-cert grpc-expander-url
ignore-daemonsets-utilization ignore-mirror-pods-utilization ignore-taint initial-node-group-backoff-duration
kube-api-content-type kube-client-burst kube-client-qps leader-elect max-allocatable-difference-ratio
max-binpacking-time max-bulk-soft-taint-count max-bulk-soft-taint-time max-drain-parallelism max-failing-time
max-free-difference-ratio max-graceful-termination-sec max-inactivity max-node-group-backoff-duration
max-node-provision-time max-node-skip-eval-time-tracker-enabled max-node-startup-time
max-nodegroup-binpacking-duration max-nodes-per-scaleup max-nodes-total max-pod-eviction-time
max-scale-down-parallelism max-startup-time max-total-unready-percentage memory-difference-ratio memory-total
min-replica-count new-pod-scale-up-delay node-delete-delay-after-taint node-deletion-batcher-interval
node-deletion-candidate-ttl node-deletion-delay-timeout node-group-backoff-reset-timeout node-info-cache-expire-time
node-removal-latency-tracking-enabled ok-total-unready-count parallel-scale-up pod-injection-limit
predicate-parallelism profiling provisioning-request-initial-backoff-time
provisioning-request-max-backoff-cache-size provisioning-request-max-backoff-time record-duplicated-events
salvo-scale-up salvo-scale-up-budget scale-down-candidates-pool-min-count scale-down-candidates-pool-ratio
scale-down-delay-after-add scale-down-delay-after-delete scale-down-delay-after-failure scale-down-delay-type-local
scale-down-enabled scale-down-gpu-utilization-threshold scale-down-non-empty-candidates-count
scale-down-simulation-timeout scale-down-unneeded-time scale-down-unready-enabled scale-down-unready-time
scale-down-utilization-threshold scale-from-unschedulable scale-up-from-zero
scaleup-simulation-for-skipped-node-groups-enabled scan-interval skip-nodes-with-custom-controller-pods
skip-nodes-with-local-storage skip-nodes-with-system-pods startup-taint startup-taint-prefix status-taint
unremovable-node-recheck-timeout user-agent v
"""
_FLAGS = frozenset(_FLAGS_OF_1_36.split())


@dataclass(frozen=True, kw_only=True)
class ClusterAutoscaler:
    """What is installed for the cluster of a pool, by the arguments of InstallClusterAutoscalerOperator.

    Attributes:
        pool: An EksGpuPool; its cluster, region and, with the expander "priority", its order of preference count.
        kubernetes: The cluster's version, like "1.36". None: not known.

    Raises:
        PoolSpecError: The pool is not on EKS, an option is not a flag of cluster-autoscaler 1.36 or not to be set, or
            the image cannot work in the cluster.
    """

    pool: GpuPool
    options: Mapping[str, Any] = field(default_factory=dict)
    kubernetes: str | None = None
    version: str | None = None
    image: str | None = None
    service_account_role_arn: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pool, EksGpuPool):
            raise PoolSpecError(
                f"Pool {self.pool.name}: cluster-autoscaler is installed on EKS only.",
                'GKE has its own: scaling="autoscaler" is enough there.',
            )
        for name, value in self.options.items():
            _check_option(name, value)
        if self.kubernetes:
            check_release(self.whole_image, self.kubernetes)

    def manifests(self) -> list[dict[str, Any]]:
        """Return all objects, in the order in which they are to be applied."""
        rbac = "rbac.authorization.k8s.io/v1"
        objects = [
            self._service_account(),
            {**_object(rbac, "ClusterRole"), "rules": _CLUSTER_RULES},
            {**_object(rbac, "ClusterRoleBinding"), **_of_account("ClusterRole")},
            {**_object(rbac, "Role"), "rules": _RULES},
            {**_object(rbac, "RoleBinding"), **_of_account("Role")},
        ]
        if "priority" in str(self._options["expander"]).split(","):
            objects.append({**_object("v1", "ConfigMap", name=PRIORITIES), "data": {"priorities": self._priorities()}})
        return [*objects, self._deployment()]

    @property
    def _options(self) -> dict[str, Any]:
        return {**_DEFAULTS, **self.options}

    @property
    def whole_image(self) -> str:
        of_cluster = release_for(self.kubernetes) if self.kubernetes else NEWEST
        return self.image or f"{IMAGE}:{self.version or of_cluster}"

    @property
    def arguments(self) -> list[str]:
        assert isinstance(self.pool, EksGpuPool)
        discovery = f"asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/{self.pool.cluster_name}"
        own = ["--cloud-provider=aws", f"--node-group-auto-discovery={discovery}", f"--namespace={STATUS_NAMESPACE}"]
        return [*own, *(f"--{name}={text}" for name, value in self._options.items() for text in _texts(value))]

    def _service_account(self) -> dict[str, Any]:
        account = _object("v1", "ServiceAccount")
        if self.service_account_role_arn:
            account["metadata"]["annotations"] = {"eks.amazonaws.com/role-arn": self.service_account_role_arn}
        return account

    def _deployment(self) -> dict[str, Any]:
        assert isinstance(self.pool, EksGpuPool)
        container = {
            "name": NAME,
            "image": self.whole_image,
            "command": ["./cluster-autoscaler"],
            "args": self.arguments,
            "env": [{"name": "AWS_REGION", "value": self.pool.region}],
            "resources": {"requests": {"cpu": "100m", "memory": "600Mi"}, "limits": {"memory": "600Mi"}},
            "livenessProbe": {"httpGet": {"path": "/health-check", "port": 8085}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        pod = {
            "serviceAccountName": NAME,
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "fsGroup": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }
        return {
            **_object("apps/v1", "Deployment"),
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": {**_LABELS, **PART_OF}}, "spec": pod},
            },
        }

    def _priorities(self) -> str:
        """Return the pool's order of preference, the largest number first; all other groups come last."""
        assert isinstance(self.pool, EksGpuPool)
        patterns = _patterns(self.pool)
        rows = [f'{10 * (len(patterns) - place)}:\n  - "{pattern}"' for place, pattern in enumerate(patterns)]
        return "\n".join([*rows, '1:\n  - ".*"', ""])


def is_autoscaler_image(image: str) -> bool:
    """Return True if an image is a cluster-autoscaler, from any registry."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0].startswith(NAME)


def _patterns(pool: EksGpuPool) -> list[str]:
    """Return expressions for the names of the pool's Auto Scaling groups, the most wanted first.

    EKS names them eks-<node group>-<uuid>.
    """
    if pool.manage == "scale":
        return [*(f"eks-{name}-{_UUID}" for name in pool.node_groups), *(f"{name}$" for name in pool.asg_names)]
    return [
        f"eks-{pool.name}-.*-{instance_type.replace('.', '-')}{'-spot' * (market == 'SPOT')}-{_UUID}"
        for market in pool.capacity_types
        for instance_type in pool.instance_types
    ]


_UUID = "[0-9a-f]{8}-[0-9a-f-]+$"


def _check_option(name: str, value: Any) -> None:
    if name in _OURS:
        raise PoolSpecError(f"options: {name} is set by this package.", "Leave it out.")
    if name not in _FLAGS:
        close = difflib.get_close_matches(name, _FLAGS, n=1)
        raise PoolSpecError(
            f"options: {name!r} is not a flag of cluster-autoscaler 1.36.",
            f"Did you mean {close[0]}?" if close else "Write it as on its command line, without the dashes in front.",
        )
    if name == "enable-dynamic-resource-allocation" and "false" in [text.lower() for text in _texts(value)]:
        raise PoolSpecError(
            f"options: from 1.35 on, cluster-autoscaler ends at once with {name}=false.", "Leave it out."
        )


def _texts(value: Any) -> list[str]:
    """Return a flag's value as Go reads it; a list is the flag several times."""
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, timedelta):
        return [f"{value.total_seconds():g}s"]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _texts(each)]
    return [str(value)]


def _object(api_version: str, kind: str, *, name: str = NAME) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {**_LABELS, **PART_OF}}
    if not kind.startswith("Cluster"):
        metadata["namespace"] = STATUS_NAMESPACE
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _of_account(role: str) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": STATUS_NAMESPACE}],
    }


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    rule = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**rule, "resourceNames": list(names)} if names else rule


_READ = ("get", "list", "watch")
_CORE = ["namespaces", "pods", "services", "replicationcontrollers", "persistentvolumeclaims", "persistentvolumes"]
_STORAGE = ["storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"]
_CLUSTER_RULES = [
    _rule("", ["events", "endpoints"], ["create", "patch"]),
    _rule("", ["pods/eviction"], ["create"]),
    _rule("", ["pods/status"], ["update"]),
    _rule("", ["endpoints"], ["get", "update"], [NAME]),
    _rule("", ["nodes"], [*_READ, "update"]),
    _rule("", _CORE, _READ),
    _rule("apps", ["daemonsets", "replicasets", "statefulsets"], _READ),
    _rule("batch", ["jobs"], [*_READ, "patch"]),
    _rule("policy", ["poddisruptionbudgets"], ["list", "watch"]),
    _rule("resource.k8s.io", ["deviceclasses", "resourceslices", "resourceclaims"], _READ),
    _rule("storage.k8s.io", _STORAGE, _READ),
    _rule("coordination.k8s.io", ["leases"], ["create"]),
    _rule("coordination.k8s.io", ["leases"], ["get", "update"], [NAME]),
]
_RULES = [
    _rule("", ["configmaps"], ["create", "list", "watch"]),
    _rule("", ["configmaps"], ["delete", "get", "update", "watch"], [STATUS_NAME, PRIORITIES]),
]


# -- which image goes with a cluster's Kubernetes: the release of the same minor version ---------------------------


def release_for(kubernetes: str) -> str:
    """Return the tag for a cluster's version, like "1.36"; the newest known one for a newer Kubernetes."""
    minor = _minor(kubernetes)
    if minor is None or minor > max(_RELEASES):
        return NEWEST
    return _RELEASES.get(minor, f"v1.{minor}.0")


def check_release(image: str, kubernetes: str) -> None:
    """Refuse an image, with its tag, that cannot work in a cluster; a tag that says no version is let through."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    release, cluster = _minor(tag), _minor(kubernetes)
    if release is None or cluster is None or release < _WATCHES_RESOURCE_V1 or cluster >= _HAS_RESOURCE_V1:
        return
    raise PoolSpecError(
        f"cluster-autoscaler {tag} never starts in a cluster with Kubernetes {kubernetes}: from"
        f" 1.{_WATCHES_RESOURCE_V1} on it needs the API resource.k8s.io/v1, which a cluster has from"
        f" 1.{_HAS_RESOURCE_V1}.",
        f"Leave version out, or use {release_for(kubernetes)}.",
        image=image,
        kubernetes=kubernetes,
    )


def _minor(version: str) -> int | None:
    found = _MINOR.match(version)
    return int(found[1]) if found else None


# -- which cluster-autoscaler is in a cluster, this package's or another, and whether this package's runs ---------

FULL_NAME = f"{STATUS_NAMESPACE}/{NAME}"

_DEPLOYMENTS = "/apis/apps/v1/deployments"


def check_no_other(api: ApiClient, now: datetime) -> None:
    """Check that there is no cluster-autoscaler but one that this package installed; else raise AutoscalerConflict."""
    found = [raw for raw in list_items(api, _DEPLOYMENTS, resource="deployments") if _is_autoscaler(raw)]
    others = [raw for raw in found if not _is_ours(raw)]
    if others:
        names = ", ".join(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}" for raw in others)
        raise _conflict(f"Deployment {names} is a cluster-autoscaler already", names)
    status = None if found else read_status(api)
    if status is not None and status.is_fresh(now):
        name = f"{STATUS_NAMESPACE}/{STATUS_NAME}"
        raise _conflict(f"A cluster-autoscaler that is no Deployment reports in ConfigMap {name}", name)


def what_is_missing(api: ApiClient, now: datetime) -> str:
    """Return why this package's cluster-autoscaler cannot be relied on yet; empty when it can."""
    path = f"/apis/apps/v1/namespaces/{STATUS_NAMESPACE}/deployments/{NAME}"
    try:
        raw = call(api, "get", path, resource="deployments")
    except ObjectNotFound:
        return f"Deployment {FULL_NAME} does not exist"
    if not _is_rolled_out(raw):
        return f"Deployment {FULL_NAME} is not available yet"
    status = read_status(api)
    if status is None or not status.is_fresh(now):
        return f"it runs, and has not written ConfigMap {STATUS_NAMESPACE}/{STATUS_NAME}"
    return ""


def _is_rolled_out(raw: Mapping[str, Any]) -> bool:
    status = raw.get("status") or {}
    is_seen = status.get("observedGeneration", 0) >= raw["metadata"]["generation"]
    new, all_replicas = status.get("updatedReplicas", 0), status.get("replicas", 0)
    # While one of an earlier template is there, it is that one which is available.
    return bool(is_seen and new and all_replicas == new and status.get("availableReplicas", 0) >= new)


def _is_autoscaler(raw: Mapping[str, Any]) -> bool:
    containers = raw["spec"]["template"]["spec"].get("containers") or ()
    return any(is_autoscaler_image(container.get("image") or "") for container in containers)


def _is_ours(raw: Mapping[str, Any]) -> bool:
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    return f"{meta['namespace']}/{meta['name']}" == FULL_NAME and labels.items() >= PART_OF.items()


def _conflict(what: str, names: str) -> AutoscalerConflict:
    return AutoscalerConflict(
        f"{what}; two would set the same groups' sizes, and nothing was installed.",
        "Use that one and leave this task out; or remove it first.",
        found=names,
    )
