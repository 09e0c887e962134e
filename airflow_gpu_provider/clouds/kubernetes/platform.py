"""Pools whose machines this package never makes, sizes or removes; KubernetesPlatform labels and taints their nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from airflow_gpu_provider.clouds.base import Group, GroupChange, Machine, Plan, Platform, Report
from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.clouds.kubernetes.pool import KubernetesGpuPool
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.nodes import list_nodes, write_node
from airflow_gpu_provider.cluster.api.rest import ApiClient, call, label_selector, list_items
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import PoolDrift, PoolSpecError
from airflow_gpu_provider.pools import Candidate, Taint
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

_NODES = "/api/v1/nodes"


class ExternalMachinesPlatform(Platform):
    """A cluster reached by a Kubernetes connection, and machines that are left alone.

    Args:
        owner: Not used: nodes carry no spec of ours.
    """

    def __init__(self, pool: KubernetesGpuPool, owner: str = "") -> None:
        self._pool = pool

    def account(self) -> str:
        return f"the cluster at {self.cluster_access().server}, by connection {self._pool.kubernetes_conn_id!r}"

    def cluster_access(self) -> ClusterAccess:
        return access_from_connection(self._pool.kubernetes_conn_id, self._pool.cluster_context)

    @cached_property
    def _api(self) -> ApiClient:
        return self.cluster_access().api_client()

    def _machines(self) -> dict[str, Machine]:
        """Return the machines of the nodes with the labels that the pool's pods select, by id."""
        return {
            node.machine: Machine(id=node.machine, group=self._pool.name, state="running", launched_at=node.created_at)
            for node in list_nodes(self._api, self._pool.node_selector)
        }

    def _group(self, machines: Mapping[str, Machine]) -> Group:
        return Group(
            name=self._pool.name,
            candidate=Candidate(group=self._pool.name, zone="", instance_type="", market="ON_DEMAND"),
            status="active",
            desired=sum(machine.state != "terminating" for machine in machines.values()),
            max_size=len(machines),
            machines=tuple(machines.values()),
            has_switch=False,
            when_idle="keep",
        )

    def grow(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: machines come by others."""

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Do nothing: machines go by others, or stay."""
        return ()

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        """Do nothing: no machine is asked for."""
        return {}


class KubernetesPlatform(ExternalMachinesPlatform):
    """A pool of nodes that are there already: one group that always exists, whose machines are not ours to remove."""

    # -- labels and taints -------------------------------------------------------------------------------------

    def plan(self, nodes: int) -> Plan:
        """Say which labels and taints nodes lack.

        Raises:
            PoolSpecError: A node that the pool names does not exist.
            PoolDrift: A node belongs to another pool.
        """
        chosen = self._chosen()
        self._check_claims(chosen)
        changes = [
            GroupChange(action="update", group=n, detail=d) for n, raw in chosen.items() if (d := self._lacks(raw))
        ]
        strays = [name for name in self._labelled() if name not in chosen]
        changes += [
            GroupChange(action="update", group=name, detail=f"is not chosen any more: label {POOL_LABEL} goes")
            for name in strays
        ]
        notes = (
            () if len(chosen) >= nodes else (f"{nodes} nodes are wanted, and {len(chosen)} are there: waits for more",)
        )
        return Plan(pool=self._pool.name, changes=tuple(changes), notes=notes)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        if not plan.changes:
            return
        chosen = self._chosen()
        self._check_claims(chosen)
        for change in plan.changes:
            if change.group in chosen:
                self._write(change.group, self._claim)
            else:
                self._write(change.group, _without_pool_label)
            report(f"node {change.group}: {change.detail}: done")

    def delete(self, report: Report) -> None:
        """Take the pool's label off its nodes; other labels and the taints may be another writer's too, and stay."""
        for name in self._labelled():
            self._write(name, _without_pool_label)
            report(f"node {name} is not in pool {self._pool.name} any more")

    def _chosen(self) -> dict[str, dict[str, Any]]:
        """Return the nodes that the spec chooses, by name."""
        if self._pool.nodes:
            return {name: self._read(name) for name in self._pool.nodes}
        return self._list(self._pool.node_selector_labels)

    def _labelled(self) -> dict[str, dict[str, Any]]:
        return self._list(self._pool.node_selector)

    def _list(self, labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        found = list_items(self._api, _NODES, resource="nodes", labelSelector=label_selector(labels))
        return {raw["metadata"]["name"]: raw for raw in found}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return call(self._api, "get", f"{_NODES}/{name}", resource="nodes")
        except ObjectNotFound as error:
            raise PoolSpecError(
                f"Pool {self._pool.name}: there is no node {name} in the cluster.",
                "Correct the pool's nodes, or let the node join; `kubectl get nodes` shows those that are there.",
                pool=self._pool.name,
                node=name,
            ) from error

    def _check_claims(self, chosen: Mapping[str, Mapping[str, Any]]) -> None:
        for name, raw in chosen.items():
            other = (raw["metadata"].get("labels") or {}).get(POOL_LABEL, self._pool.name)
            if other != self._pool.name:
                raise PoolDrift(
                    f"Node {name} belongs to pool {other}, and pool {self._pool.name} chooses it too.",
                    "Let each node be in one pool; runs that are to share nodes use the same pool.",
                    pool=self._pool.name,
                    node=name,
                )

    def _lacks(self, raw: Mapping[str, Any]) -> str:
        """Say what a node lacks of the spec; empty when nothing."""
        has = raw["metadata"].get("labels") or {}
        labels = [f"label {key}={value}" for key, value in self._pool.labels.items() if has.get(key) != value]
        there = {str(Taint.of_json(taint)) for taint in (raw.get("spec") or {}).get("taints") or ()}
        return ", ".join([*labels, *(f"taint {t}" for t in self._pool.parsed_taints if str(t) not in there)])

    def _claim(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the patch that gives a node what it lacks. A list of taints is replaced as a whole."""
        wanted = self._pool.parsed_taints
        replaced = {(taint.key, taint.effect) for taint in wanted}
        kept = [t for t in (raw.get("spec") or {}).get("taints") or () if (t["key"], t["effect"]) not in replaced]
        own = [{"key": t.key, "value": t.value, "effect": t.effect} for t in wanted]
        spec = {"spec": {"taints": [*kept, *own]}} if wanted else {}
        return {"metadata": {"labels": self._pool.labels}, **spec}

    def _write(self, name: str, patch_for: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        write_node(self._api, lambda: self._read(name), patch_for)

    # -- what there is -----------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        """Return the one group: the nodes with the pool's label, which is what pods select."""
        group = self._group(self._machines())
        return (replace(group, when_idle="cordon" if self._pool.cordon_when_idle else "keep"),)


def _without_pool_label(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": {POOL_LABEL: None}}}
