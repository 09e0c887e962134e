"""Whether a Kueue queue makes the ProvisioningRequests by which a pool's nodes come, and makes them as they should be.

The fields are those of kueue.x-k8s.io/v1beta2, and v1beta1 where it differs: a ClusterQueue's `admissionChecks`. What
GKE needs of them: docs/kueue/queued-provisioning.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self

from kubernetes.utils.quantity import parse_quantity

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.api.rest import ApiClient, list_items
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.cluster.model.status_conditions import conditions_of
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.times import format_seconds

API_GROUP = "kueue.x-k8s.io"
OF_CLUSTER = ("clusterqueues", "resourceflavors", "admissionchecks", "provisioningrequestconfigs")

_VERSIONS = ("v1beta2", "v1beta1")
_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
_NODES_OF_REQUEST = ("autoscaling.gke.io/provisioning-request", "ResizeRequestName")
_LONG_ENOUGH = timedelta(minutes=15)
"""For how long requests are to be tried: GKE keeps idle nodes for ten minutes, and then deletes them for some more."""
_RETRIES = {"backoffLimitCount": 3, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800}
"""Kueue's defaults (ProvisioningRequestRetryStrategy)."""
_LONGEST_RUN = 604800
"""GKE's default of maxRunDurationSeconds, and its most ("... with flex-start with queued provisioning")."""
_FIX = "Correct it as docs/kueue/queued-provisioning.yaml has it."

Problem = tuple[Literal["warning", "problem"], str]


@dataclass(frozen=True, kw_only=True)
class KueueQueues:
    """The LocalQueues of a namespace, and what they may lead to, by name; `version` is empty without Kueue."""

    namespace: str
    version: str = ""
    local: Mapping[str, Json]
    of_cluster: Mapping[str, Mapping[str, Json]]

    @classmethod
    def read(cls, api: ApiClient, namespace: str) -> Self:
        """Read them; raises PermissionDenied where docs/rbac/kueue.yaml is not bound."""
        for version in _VERSIONS:
            path = f"/apis/{API_GROUP}/{version}"
            try:
                local = _by_name(api, f"{path}/namespaces/{namespace}/localqueues")
                of_cluster = {plural: _by_name(api, f"{path}/{plural}") for plural in OF_CLUSTER}
            except ObjectNotFound:
                continue
            return cls(namespace=namespace, version=version, local=local, of_cluster=of_cluster)
        return cls(namespace=namespace, local={}, of_cluster={plural: {} for plural in OF_CLUSTER})

    def examine(self, pool: GpuPool) -> Iterator[tuple[Literal["ok", "warning", "problem"], str, str]]:
        """Yield what is wrong with each queue that is for the pool, or that there is none; each with what to do."""
        if not self.version:
            yield "problem", "the cluster serves no Kueue that this package knows", "Install Kueue 0.15 or newer."
            return
        unsuitable, is_any = list[str](), False
        for name, queue in sorted(self.local.items()):
            cluster_queue = self.of_cluster["clusterqueues"].get(_spec(queue).get("clusterQueue", ""))
            if cluster_queue is None:
                unsuitable.append(f"the ClusterQueue of {name} does not exist")
            elif not self._is_for_another(pool, cluster_queue):
                checks = self._checks(cluster_queue)
                if not checks:
                    unsuitable.append(f"{name} has no admission check by ProvisioningRequests")
                    continue
                is_any = True
                found = [*self._of_checks(pool, checks), *_of_quota(pool, cluster_queue)]
                for result, message in found:
                    yield result, f"queue {name}: {message}", _FIX
                if not found:
                    yield "ok", f"queue {name} makes the ProvisioningRequests of the pool's nodes", ""
        if not is_any:
            why = f" ({'; '.join(unsuitable)})" if unsuitable else ""
            message = f"no LocalQueue of namespace {self.namespace} makes ProvisioningRequests for the pool{why}"
            yield "problem", message, "Apply docs/kueue/queued-provisioning.yaml with the pool's names and numbers."

    def _is_for_another(self, pool: GpuPool, cluster_queue: Json) -> bool:
        flavors = [self.of_cluster["resourceflavors"].get(each["name"]) or {} for each in _flavors(cluster_queue)]
        names = {(_spec(each).get("nodeLabels") or {}).get(POOL_LABEL, pool.name) for each in flavors}
        return bool(names) and pool.name not in names

    def _checks(self, cluster_queue: Json) -> list[Json]:
        spec = _spec(cluster_queue)
        rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        names = [*(spec.get("admissionChecks") or ()), *(each["name"] for each in rules)]
        found = (self.of_cluster["admissionchecks"].get(name) for name in names)
        return [each for each in found if each is not None and _spec(each).get("controllerName") == _CONTROLLER]

    def _of_checks(self, pool: GpuPool, checks: list[Json]) -> Iterator[Problem]:
        for check in checks:
            name = check["metadata"]["name"]
            active = conditions_of(check).get("Active")
            if active is None or not active.is_true:
                yield "problem", f"admission check {name} is not active{f': {active.message}' if active else ''}"
            parameters = _spec(check).get("parameters") or {}
            config = self.of_cluster["provisioningrequestconfigs"].get(parameters.get("name", ""))
            if config is None:
                yield "problem", f"the ProvisioningRequestConfig of admission check {name} does not exist"
            else:
                yield from _of_config(pool, config)


def _of_config(pool: GpuPool, config: Json) -> Iterator[Problem]:
    spec, name = _spec(config), f"ProvisioningRequestConfig {config['metadata']['name']}"
    if (found := spec.get("provisioningClassName")) != pool.provisioning_class:
        yield "problem", f"{name} has provisioningClassName {found}, and the pool needs {pool.provisioning_class}"
    if GPU_RESOURCE not in (spec.get("managedResources") or ()):
        yield "problem", f"{name} lacks {GPU_RESOURCE} in managedResources"
    selected = (spec.get("podSetUpdates") or {}).get("nodeSelector") or ()
    key, detail = _NODES_OF_REQUEST
    if (key, detail) not in [(each.get("key"), each.get("valueFromProvisioningClassDetail")) for each in selected]:
        yield "problem", f"{name} lacks {key} from {detail} in podSetUpdates: pods run on nodes of other requests"
    given = str((spec.get("parameters") or {}).get("maxRunDurationSeconds", _LONGEST_RUN))
    if given.isdecimal() and int(given) < pool.max_runtime.total_seconds():
        ends = format_seconds(timedelta(seconds=int(given)))
        yield "problem", f"{name} has GKE end the nodes after {ends}, before max_runtime={pool.max_runtime}"
    if (lasts := _retries_for(spec.get("retryStrategy") or {})) < _LONG_ENOUGH:
        how_long, needed = format_seconds(lasts), format_seconds(_LONG_ENOUGH)
        yield "warning", f"{name} retries for {how_long} in all: GKE's idle nodes may take {needed} to make room"


def _retries_for(strategy: Json) -> timedelta:
    """Return the sum of the pauses between requests; the n-th is base x 2^(n-1) (Kueue, pkg/util/wait)."""
    limit, base, most = (int(strategy.get(name, default)) for name, default in _RETRIES.items())
    return timedelta(seconds=sum(min(base * 2 ** min(number, 30), most) for number in range(min(limit, 1000))))


def _of_quota(pool: GpuPool, cluster_queue: Json) -> Iterator[Problem]:
    quota = sum(
        int(parse_quantity(each.get("nominalQuota", 0)))
        for flavor in _flavors(cluster_queue)
        for each in flavor.get("resources") or ()
        if each["name"] == GPU_RESOURCE
    )
    sizes = {size.gpus for size in pool.node_sizes.values() if size is not None and size.gpus}
    if len(sizes) != 1:
        return  # the quota fits none of several sizes
    gpus = sizes.pop()
    if quota != (most := pool.max_nodes * gpus):
        what = "requests are made that find no room" if quota > most else "not all nodes are used"
        yield "warning", f"its quota is {quota} {GPU_RESOURCE}, and max_nodes={pool.max_nodes} has {most}: {what}"


def _flavors(cluster_queue: Json) -> list[Json]:
    groups = _spec(cluster_queue).get("resourceGroups") or ()
    return [flavor for group in groups for flavor in group.get("flavors") or ()]


def _spec(raw: Json) -> dict[str, Any]:
    return raw.get("spec") or {}


def _by_name(api: ApiClient, path: str) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in list_items(api, path, resource=path.rpartition("/")[2])}
