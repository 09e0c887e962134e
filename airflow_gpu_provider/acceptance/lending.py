"""A group of the acceptance's own as one that others own: it loses this package's mark for a night, and gets it back.

The mark stays, and is empty meanwhile: the documented role may change a group by its mark, and give a mark to any.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.acceptance.pools import CloudPool
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.platforms.base import Say
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool

_LOOKS = 3
_LOOK_SECONDS = 2.0
_SHOWN_WITHIN = 120.0


def lend(pool: CloudPool, group: str, say: Say) -> None:
    """Take this package's mark off a group of the pool."""
    _mark(pool, group, "", say)


def take_back(pool: CloudPool, say: Say) -> None:
    """Put the mark back on each group of the pool that was lent, by this process or one before it."""
    for group in _lent(pool):
        _mark(pool, group, pool.name, say)


def _lent(pool: CloudPool) -> list[str]:
    return [name for name, mark in _marks(pool).items() if mark == ""]


def _marks(pool: CloudPool) -> dict[str, str | None]:
    """Return the mark of each group that may be the pool's, by name; None where it has none."""
    if isinstance(pool, EksGpuPool):
        return {name: _eks_mark(raw) for name, raw in _eks_groups(pool).items()}
    return {name: _gke_mark(raw) for name, raw in _gke_groups(pool).items()}


def _mark(pool: CloudPool, group: str, mark: str, say: Say) -> None:
    if isinstance(pool, EksGpuPool):
        _mark_eks(pool, group, mark)
    else:
        _mark_gke(pool, group, mark, say)
    _wait_until_shown(pool, group, mark)


def _wait_until_shown(pool: CloudPool, group: str, mark: str) -> None:
    """Wait until the cloud shows the mark several times in a row.

    A read may be seconds old, and an accurate one be followed by one that is not ("Eventual consistency" in EC2's
    developer guide): the night that comes next would take the group for whose it was.
    """
    deadline, in_a_row = time.monotonic() + _SHOWN_WITHIN, 0
    while True:
        in_a_row = in_a_row + 1 if _marks(pool).get(group) == mark else 0
        if in_a_row == _LOOKS:
            return
        if time.monotonic() > deadline:
            raise CloudError(
                f"Group {group} does not show the mark {mark!r} that it was given {_SHOWN_WITHIN:.0f} s ago.",
                "Look who else changes the group's tags or labels, and run the acceptance again.",
                group=group,
            )
        time.sleep(_LOOK_SECONDS)


# -- EKS -----------------------------------------------------------------------------------------------------


def _eks_groups(pool: EksGpuPool) -> Mapping[str, Mapping[str, Any]]:
    from airflow_gpu_provider.platforms.aws.clients import AwsClients
    from airflow_gpu_provider.platforms.aws.node_groups import NodeGroups

    clients = AwsClients(conn_id=pool.aws_conn_id, region=pool.region)
    return NodeGroups(clients.eks, pool).read()


def _eks_mark(raw: Mapping[str, Any]) -> str | None:
    from airflow_gpu_provider.platforms.aws.spec import POOL_TAG

    mark: str | None = (raw.get("tags") or {}).get(POOL_TAG)
    return mark


def _mark_eks(pool: EksGpuPool, group: str, mark: str) -> None:
    from airflow_gpu_provider.platforms.aws.clients import AwsClients
    from airflow_gpu_provider.platforms.aws.spec import POOL_TAG

    eks = AwsClients(conn_id=pool.aws_conn_id, region=pool.region).eks
    eks.call("tag_resource", resourceArn=_eks_groups(pool)[group]["nodegroupArn"], tags={POOL_TAG: mark})


# -- GKE -----------------------------------------------------------------------------------------------------


def _gke_groups(pool: GkeGpuPool) -> Mapping[str, Mapping[str, Any]]:
    from airflow_gpu_provider.platforms.google.clients import GoogleClients
    from airflow_gpu_provider.platforms.google.node_pools import NodePools

    clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)
    found = NodePools(clients.gke, pool).read()
    return {name: raw for name, raw in found.items() if name.startswith(f"{pool.name}-")}


def _gke_mark(raw: Mapping[str, Any]) -> str | None:
    from airflow_gpu_provider.platforms.google.spec import POOL_LABEL, labels_of

    return labels_of(raw).get(POOL_LABEL)


def _mark_gke(pool: GkeGpuPool, group: str, mark: str, say: Say) -> None:
    from airflow_gpu_provider.platforms.google.clients import GoogleClients
    from airflow_gpu_provider.platforms.google.node_pools import NodePools
    from airflow_gpu_provider.platforms.google.operations import Operations, Step
    from airflow_gpu_provider.platforms.google.spec import POOL_LABEL, labels_of

    clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)
    node_pools = NodePools(clients.gke, pool)
    labels = {**labels_of(_gke_groups(pool)[group]), POOL_LABEL: mark}
    change = {"resource_labels": {"labels": labels}}
    step = Step(group=group, doing=f"mark {group}", start=lambda: node_pools.update(group, change))
    for error in Operations(clients.gke, node_pools.location).run([step], say).values():
        raise error
