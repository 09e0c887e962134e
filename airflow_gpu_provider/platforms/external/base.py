"""ExternalMachinesPlatform: what every pool has in common whose machines this package never makes, sizes or removes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.nodes import list_nodes
from airflow_gpu_provider.platforms.base import Group, Machine, Platform
from airflow_gpu_provider.pools import Candidate, KubernetesGpuPool

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.cluster.access import ClusterAccess


class ExternalMachinesPlatform(Platform):
    """A cluster reached by a Kubernetes connection, and machines that are left alone.

    Args:
        pool: The rendered spec.
        owner: Not used: nodes carry no spec of ours.
    """

    def __init__(self, pool: KubernetesGpuPool, owner: str = "") -> None:
        self._pool = pool

    def account(self) -> str:
        return f"the cluster at {self.cluster_access().server}, by connection {self._pool.kubernetes_conn_id!r}"

    def cluster_access(self) -> ClusterAccess:
        from airflow_gpu_provider.platforms.external.access import access_from_connection

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
        """Return the one group that such a pool has."""
        return Group(
            name=self._pool.name,
            candidate=Candidate(group=self._pool.name, zone="", instance_type="", market="ON_DEMAND"),
            status="active",
            desired=len(machines),
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
