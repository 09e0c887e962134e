"""What the package does inside a cluster, as RBAC rules, and which of it the credentials may not do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.cluster.api.access_review import is_allowed
from airflow_gpu_provider.cluster.api.code_requests import CODE_VERBS
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.cluster.model.provisioning_requests import API_GROUP as REQUESTS_GROUP
from airflow_gpu_provider.cluster.model.provisioning_requests import PLURAL
from airflow_gpu_provider.reports.kueue_queues import API_GROUP, OF_CLUSTER

if TYPE_CHECKING:
    from airflow_gpu_provider.pools import GpuPool

_OF_OWNED = ("full.yaml", "device-plugin.yaml")
"""The files for pools whose groups this package owns; scale-only.yaml has what other pools need from both."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on one resource.

    Attributes:
        namespace: Empty if it must be allowed in all namespaces.
        name: The single object concerned; empty: any.
        roles: The file in docs/rbac that grants it.
        only_for: What needs it; empty if every run does.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    namespace: str = ""
    name: str = ""
    roles: str = "full.yaml"
    only_for: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{'/'.join(self.verbs)} {self.resource}{f' {self.name}' if self.name else ''}{where}"


def rules(pool: GpuPool, pod_namespace: str, *, takes_code: bool = False) -> tuple[Rule, ...]:
    """Return what a run of the pool does in its cluster, from Ensure to scale-down; docs/rbac grants it.

    `takes_code`: a task of the pool has `code`.
    """
    wanted = (*_of_every_run(pod_namespace), *_of_plugins(pool), *_of_autoscaling(pool), *_of_provisioners(pool))
    wanted += (*_of_queues(pool, pod_namespace), *(_of_code(pod_namespace) if takes_code else ()))
    if pool.manage != "scale":
        return wanted
    return tuple(replace(rule, roles="scale-only.yaml") if rule.roles in _OF_OWNED else rule for rule in wanted)


def to_install_a_plugin() -> tuple[Rule, ...]:
    """Return what InstallDevicePluginOperator needs if nothing serves the pool's nodes yet."""
    verbs = ("get", "create", "patch")
    return (
        Rule(group="apps", resource="daemonsets", verbs=verbs, namespace=PLUGIN_NAMESPACE, roles="device-plugin.yaml"),
    )


def _of_every_run(pod_namespace: str) -> Iterator[Rule]:
    lease_verbs = ("get", "list", "create", "update", "delete")
    yield Rule(group="coordination.k8s.io", resource="leases", verbs=lease_verbs, namespace=DEMAND_NAMESPACE)
    yield Rule(group="", resource="nodes", verbs=("get", "list", "watch", "patch"))
    yield Rule(group="", resource="pods", verbs=("get", "list"))
    yield Rule(group="apps", resource="daemonsets", verbs=("list",))
    pod_verbs = ("get", "list", "watch", "create", "patch", "delete")
    yield Rule(group="", resource="pods", verbs=pod_verbs, namespace=pod_namespace)
    yield Rule(group="", resource="pods/log", verbs=("get",), namespace=pod_namespace)
    yield Rule(group="", resource="events", verbs=("list", "watch"), namespace=pod_namespace)
    yield Rule(
        group="",
        resource="pods/exec",
        verbs=("get", "create"),
        namespace=pod_namespace,
        only_for="do_xcom_push=True, by which a pod's result is read",
    )


def _of_plugins(pool: GpuPool) -> Iterator[Rule]:
    if not pool.nodes_to_come.platform:
        verbs = ("list", "watch")
        yield Rule(group="", resource="pods", verbs=verbs, namespace=PLUGIN_NAMESPACE, roles="device-plugin.yaml")


def _of_autoscaling(pool: GpuPool) -> Iterator[Rule]:
    if pool.has_autoscaler_status:
        report = {"namespace": STATUS_NAMESPACE, "name": STATUS_NAME}
        yield Rule(group="", resource="configmaps", verbs=("get",), roles="autoscaler.yaml", **report)


def _of_provisioners(pool: GpuPool) -> Iterator[Rule]:
    for verb, group, resource in pool.reads_of_provisioner:
        yield Rule(group=group, resource=resource, verbs=(verb,))
    if pool.has_karpenter:
        # Events of cluster-scoped objects are kept there.
        yield Rule(group="", resource="events", verbs=("list",), namespace="default")


def _of_queues(pool: GpuPool, pod_namespace: str) -> Iterator[Rule]:
    if not pool.provisioning_class:
        return
    own: Any = {"roles": "kueue.yaml", "only_for": "why a queued task waits, and the doctor's check of its queue"}
    watched: Any = {"verbs": ("list", "watch"), "namespace": pod_namespace, **own}
    yield Rule(group=API_GROUP, resource="workloads", **watched)
    yield Rule(group=REQUESTS_GROUP, resource=PLURAL, **watched)
    yield Rule(group=API_GROUP, resource="localqueues", verbs=("list",), namespace=pod_namespace, **own)
    for resource in OF_CLUSTER:
        yield Rule(group=API_GROUP, resource=resource, verbs=("list",), **own)


def _of_code(pod_namespace: str) -> Iterator[Rule]:
    yield Rule(group="", resource="configmaps", verbs=CODE_VERBS, namespace=pod_namespace, roles="code.yaml")


def missing(api: ApiClient, wanted: Iterable[Rule]) -> tuple[Rule, ...]:
    """Ask the API server about each verb; return the rules with their verbs that are not allowed."""
    found = []
    for rule in wanted:
        where = {"group": rule.group, "namespace": rule.namespace, "name": rule.name}
        refused = tuple(verb for verb in rule.verbs if not is_allowed(api, verb, rule.resource, **where))
        if refused:
            found.append(replace(rule, verbs=refused))
    return tuple(found)
