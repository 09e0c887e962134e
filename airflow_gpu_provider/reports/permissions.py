"""What the package does inside a cluster, as RBAC's words, and which of it the credentials may not do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.demand import DEMAND_NAMESPACE
from airflow_gpu_provider.cluster.rest import call

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on one resource; `namespace` is empty where it has to be allowed in all of them."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{'/'.join(self.verbs)} {self.resource}{where}"


PLUGIN = Rule(group="apps", resource="daemonsets", verbs=("get", "create", "patch"), namespace="kube-system")
"""What InstallDevicePluginOperator needs where nothing serves the pool's nodes yet."""


def rules(pod_namespace: str) -> tuple[Rule, ...]:
    """Return what every run needs, from Ensure to scale-down; docs/rbac grants it."""
    leases = ("get", "list", "create", "update", "delete")
    return (
        Rule(group="coordination.k8s.io", resource="leases", verbs=leases, namespace=DEMAND_NAMESPACE),
        Rule(group="", resource="nodes", verbs=("get", "list", "watch", "patch")),
        Rule(group="", resource="pods", verbs=("get", "list")),
        Rule(group="apps", resource="daemonsets", verbs=("list",)),
        Rule(
            group="",
            resource="pods",
            verbs=("get", "list", "watch", "create", "patch", "delete"),
            namespace=pod_namespace,
        ),
        Rule(group="", resource="pods/log", verbs=("get",), namespace=pod_namespace),
        Rule(group="", resource="events", verbs=("list", "watch"), namespace=pod_namespace),
    )


def missing(api: ApiClient, wanted: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Ask the API server about each verb; return the rules with what is not allowed of them.

    Every identity may ask about itself.
    """
    found = []
    for rule in wanted:
        refused = tuple(verb for verb in rule.verbs if not _is_allowed(api, rule, verb))
        if refused:
            found.append(Rule(group=rule.group, resource=rule.resource, verbs=refused, namespace=rule.namespace))
    return tuple(found)


def _is_allowed(api: ApiClient, rule: Rule, verb: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    attributes = {"group": rule.group, "resource": resource, "verb": verb}
    if subresource:
        attributes["subresource"] = subresource
    if rule.namespace:
        attributes["namespace"] = rule.namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = call(api, "create", _REVIEWS, resource="selfsubjectaccessreviews", body=body)
    return bool(answer["status"]["allowed"])
