"""What an informer watches: collections of objects by label and field, and the key by which feeds ask for theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from airflow_gpu_provider.cluster.api.rest import label_selector
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, JOB_LABEL, WORKLOAD_LABEL, jobs_path
from airflow_gpu_provider.cluster.model.provisioning_requests import API_GROUP, PLURAL
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

NODES = "api/v1/nodes"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """What a watch is of.

    Attributes:
        path: The collection, like "api/v1/nodes".
        key: Says which key an object has; a feed asks for one key.
        is_optional: No wait depends on it: where it is refused or not there, it is asked for once a minute.
        versions: Those of its API group that this package can read, the best first; the path then has "{version}", for
            the one that the API server has. Empty: the path names it.
    """

    path: str
    key: Callable[[Json], str]
    label_selector: str = ""
    field_selector: str = ""
    is_optional: bool = False
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.path.format(version="|".join(self.versions))

    @property
    def group(self) -> str:
        """The path of its API group, which tells its versions."""
        return self.path.partition("/{version}/")[0]

    @property
    def params(self) -> dict[str, str]:
        pairs = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in pairs.items() if value}


def pods(namespace: str) -> Resource:
    """The pods that this package placed in a namespace; keyed by name."""
    return Resource(path=f"api/v1/namespaces/{namespace}/pods", key=_name, label_selector=POOL_LABEL)


def pod_events(namespace: str) -> Resource:
    """Events about pods of a namespace; keyed by the pod's name."""
    return _events(namespace, _about, "Pod")


def gangs(namespace: str) -> Resource:
    """The Jobs of gangs in a namespace; keyed by name."""
    return Resource(path=jobs_path(namespace).lstrip("/"), key=_name, label_selector=GANG_LABEL)


def gang_pods(namespace: str) -> Resource:
    """The pods of gangs in a namespace; keyed by their Job's name, so that one watch serves all ranks."""
    return Resource(path=f"api/v1/namespaces/{namespace}/pods", key=_label(JOB_LABEL), label_selector=GANG_LABEL)


def gang_events(namespace: str) -> Resource:
    """Events about pods of a namespace; keyed by the name of the Indexed Job that a pod's name begins with."""
    return _events(namespace, _job_about, "Pod")


def job_events(namespace: str) -> Resource:
    """Events about Jobs of a namespace; keyed by the Job's name."""
    return _events(namespace, _about, "Job")


def all_job_events(namespace: str) -> Resource:
    """Events about Jobs of a namespace, for one who does not know their names; all have the key ""."""
    return _events(namespace, _any, "Job")


def workloads(path: str) -> Resource:
    """The objects of one kind that this package placed in a namespace, whose path it is; keyed by name."""
    return Resource(path=path, key=_name, label_selector=POOL_LABEL)


def kueue_workloads(namespace: str) -> Resource:
    """Kueue's Workloads of a namespace; keyed by their LocalQueue.

    Kueue 0.15 and later serve v1beta2, up to 0.19 v1beta1. What this package reads of a Workload is alike in both: its
    owners, queueName, priority, active, conditions, admissionChecks and requeueState. (The name and the kind of its
    priority class are not.)
    """
    path = f"apis/kueue.x-k8s.io/{{version}}/namespaces/{namespace}/workloads"
    return Resource(path=path, key=_queue, is_optional=True, versions=("v1beta2", "v1beta1"))


def provisioning_requests(namespace: str) -> Resource:
    """ProvisioningRequests of a namespace; all have the key "": which Workload one is for, its owner tells."""
    path = f"apis/{API_GROUP}/v1/namespaces/{namespace}/{PLURAL}"
    return Resource(path=path, key=_any, is_optional=True)


def workload_pods(namespace: str) -> Resource:
    """The pods of workloads in a namespace; keyed by their task."""
    return Resource(
        path=f"api/v1/namespaces/{namespace}/pods", key=_label(WORKLOAD_LABEL), label_selector=WORKLOAD_LABEL
    )


def all_pod_events(namespace: str) -> Resource:
    """Events about pods of a namespace, for one who does not know their names; all have the key ""."""
    return _events(namespace, _any, "Pod")


def pool_nodes(selector: Mapping[str, str]) -> dict[Resource, str]:
    """What to watch for a pool's nodes, by the labels that its pods select: all labelled pools share one watch."""
    if POOL_LABEL in selector:
        return {Resource(path=NODES, key=_label(POOL_LABEL), label_selector=POOL_LABEL): selector[POOL_LABEL]}
    return {Resource(path=NODES, key=_any, label_selector=label_selector(selector)): ""}


def unlabelled_nodes() -> Resource:
    """The nodes that are in no pool, among them new nodes of external groups until they get their pool's labels."""
    return Resource(path=NODES, key=_any, label_selector=f"!{POOL_LABEL}")


def _events(namespace: str, key: Callable[[Json], str], kind: str) -> Resource:
    path = f"api/v1/namespaces/{namespace}/events"
    return Resource(path=path, key=key, field_selector=f"involvedObject.kind={kind}")


def _name(raw: Json) -> str:
    return str(raw["metadata"]["name"])


def _about(raw: Json) -> str:
    return str((raw.get("involvedObject") or {}).get("name") or "")


def _job_about(raw: Json) -> str:
    return _about(raw).rsplit("-", 2)[0]  # "<job>-<rank>-<random>"


def _queue(raw: Json) -> str:
    return str((raw.get("spec") or {}).get("queueName") or "")


def _any(raw: Json) -> str:
    return ""


@cache  # two Resources are the same where their keys are
def _label(name: str) -> Callable[[Json], str]:
    return lambda raw: str((raw["metadata"].get("labels") or {}).get(name) or "")
