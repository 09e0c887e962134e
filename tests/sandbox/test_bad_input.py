"""What cannot work, at each cloud: a typed error that says what to do, and nothing that was created."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, gpu_nodes
from airflow_gpu_provider.errors import (
    ClusterNotFound,
    GpuError,
    NodesNotReady,
    PermissionDenied,
    PoolDrift,
    PoolSpecError,
    QuotaExceeded,
)
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles
from tests.sandbox.running import context_of, eventually, run

NAME = "bad-input"


pytestmark = pytest.mark.usefixtures("impatient")


@dataclass
class Cloud:
    """One cloud with a cluster: a pool that would work there, and how to spoil it."""

    sandbox: Sandbox
    pool: Callable[..., GpuPool]
    machines: str
    unknown: str
    no_gpus: str
    quotas: tuple[str, ...]
    """Those that a machine may count against; the first is named."""
    connection: str

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The node groups of this file's pools, sizes included."""
        provider = self.sandbox.google if self.sandbox.platform == "gke" else self.sandbox.aws
        found = [each for each in provider.describe_groups() if str(each["nodegroup"]).startswith(NAME)]
        return [{**each, "instances": len(each["instances"])} for each in found]

    def objects(self, pool: str = NAME) -> set[str]:
        """What an Ensure or a device plugin of the pool would leave in the cluster."""
        found = set()
        for path in ("/apis/coordination.k8s.io/v1/leases", "/apis/apps/v1/daemonsets"):
            _, reply = self.sandbox.control_plane.request("GET", path)
            for each in reply["items"]:
                if each["metadata"].get("labels", {}).get(POOL_LABEL) == pool:
                    found.add(f"{path}/{each['metadata']['name']}")
        return found

    @contextmanager
    def creates_nothing(self) -> Iterator[None]:
        groups = self.groups
        yield
        assert self.groups == groups
        assert self.objects() == set()


@pytest.fixture(params=["eks", "gke"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    sandbox: Sandbox = request.getfixturevalue("gpu_sandbox" if request.param == "eks" else "gke_sandbox")
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    yield _eks(sandbox) if request.param == "eks" else _gke(sandbox)
    sandbox.faults.clear()


def _eks(sandbox: Sandbox) -> Cloud:
    def pool(**changes: Any) -> GpuPool:
        usual = {"instance_types": ["g5.2xlarge"], "zones": [sandbox.zones[0]], "max_nodes": 2}
        where = {"cluster_name": sandbox.cluster_name, "region": sandbox.region}
        return EksGpuPool(**{"name": NAME, **usual, **where, **changes})

    return Cloud(sandbox, pool, "instance_types", "g6.xlargee", "m5.large", ("L-DB2E81BA",), "aws_conn_id")


def _gke(sandbox: Sandbox) -> Cloud:
    def pool(**changes: Any) -> GpuPool:
        usual = {"machine_types": ["g2-standard-4"], "node_locations": [sandbox.zones[0]], "max_nodes": 2}
        where = {"project_id": sandbox.google.project_id, "location": sandbox.google.location}
        return GkeGpuPool(**{"name": NAME, "cluster_name": sandbox.cluster_name, **usual, **where, **changes})

    quotas = ("NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS")
    return Cloud(sandbox, pool, "machine_types", "g2-standard-5", "e2-standard-4", quotas, "gcp_conn_id")


def ensure(pool: GpuPool, **arguments: Any) -> Any:
    return run(_operator(pool, **arguments))


def _operator(pool: GpuPool, **arguments: Any) -> EnsureGpuPoolOperator:
    return EnsureGpuPoolOperator(
        task_id="ensure", gpu_pool=pool, timeout=timedelta(minutes=2), deferrable=False, **arguments
    )


def test_an_unknown_cluster(cloud: Cloud) -> None:
    with cloud.creates_nothing(), pytest.raises(ClusterNotFound, match="no-such-cluster"):
        ensure(cloud.pool(cluster_name="no-such-cluster"))


def test_an_unknown_gpu_type_is_refused_when_the_dag_is_parsed(cloud: Cloud) -> None:
    with cloud.creates_nothing(), pytest.raises(PoolSpecError, match=f"{cloud.unknown}.*with GPUs.*Did you mean g"):
        cloud.pool(**{cloud.machines: [cloud.unknown]})


def test_a_machine_type_without_gpus_is_refused_when_the_dag_is_parsed(cloud: Cloud) -> None:
    with cloud.creates_nothing(), pytest.raises(PoolSpecError, match=cloud.no_gpus):
        cloud.pool(**{cloud.machines: [cloud.no_gpus]})


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "says"),
    [
        ("n1-standard-4", "nvidia-l5", "nvidia-l5.*is not a GPU of Google Cloud"),
        ("a2-highgpu-1g", "nvidia-l4", "a2-highgpu-1g has nvidia-tesla-a100, not nvidia-l4"),
    ],
)
def test_a_machine_type_without_that_accelerator_is_refused_when_the_dag_is_parsed(
    gke_sandbox: Sandbox, machine_type: str, accelerator: str, says: str
) -> None:
    cloud = _gke(gke_sandbox)
    with cloud.creates_nothing(), pytest.raises(PoolSpecError, match=says):
        cloud.pool(machine_types=[machine_type], accelerator={"type": accelerator})


def test_a_quota_that_is_too_small(cloud: Cloud) -> None:
    for quota in cloud.quotas:
        cloud.sandbox.faults.set_quota(quota, 0)
    says = rf"{cloud.quotas[0]}.* 0 .*needed.*Request a higher"
    with cloud.creates_nothing(), pytest.raises(QuotaExceeded, match=says):
        ensure(cloud.pool())


def test_a_zone_without_the_type(cloud: Cloud) -> None:
    provider = cloud.sandbox.google if cloud.sandbox.platform == "gke" else cloud.sandbox.aws
    machine, zone = getattr(cloud.pool(), cloud.machines)[0], cloud.sandbox.zones[0]
    offered = "nvidia-l4" if cloud.sandbox.platform == "gke" else machine
    provider.set_offered(offered, zone, offered=False)
    try:
        with cloud.creates_nothing(), pytest.raises(PoolSpecError, match=f"{machine}.* in none of {zone}"):
            ensure(cloud.pool())
    finally:
        provider.set_offered(offered, zone, offered=True)


def test_a_role_that_may_not_be_assumed(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    cloud, key = _eks(gpu_sandbox), gpu_sandbox.aws.add_identity("bad-input-role")
    connection = aws_identity.connection(gpu_sandbox, key, role_arn="arn:aws:iam::123456789012:role/not-yours")
    monkeypatch.setenv("AIRFLOW_CONN_REFUSED", json.dumps(connection))
    with cloud.creates_nothing(), pytest.raises(PermissionDenied, match=r"does not let it in \(sts:AssumeRole"):
        ensure(cloud.pool(aws_conn_id="refused"))


def _refuse(cloud: Cloud, missing: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the connection `refused` all that docs/iam lists but this; return the identity's name in the cloud."""
    name = f"bad-input-without-{missing.rpartition(':')[2].lower()}"
    if cloud.sandbox.platform == "gke":
        role = documented_roles.google_role("gke-full.json")
        account = cloud.sandbox.google.add_identity(name[:30], permissions=set(role) - {missing})
        connection, identity = cloud.sandbox.google.connection(account), account.email
    else:
        of_cluster = documented_roles.of_cluster(cloud.sandbox, f"{NAME}*")
        policy = documented_roles.policy("eks-full.json", without=[missing], **of_cluster)
        key = cloud.sandbox.aws.add_identity(name, policy=policy)
        connection, identity = (
            aws_identity.connection(cloud.sandbox, key),
            key.arn,
        )
    monkeypatch.setitem(cloud.sandbox.authenticator.access_entries, identity, ["system:masters"])
    monkeypatch.setenv("AIRFLOW_CONN_REFUSED", json.dumps(connection))
    return identity


def test_a_permission_to_create_that_is_missing(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    gke = cloud.sandbox.platform == "gke"
    missing = "container.clusters.update" if gke else "eks:CreateNodegroup"
    identity = _refuse(cloud, missing, monkeypatch)
    with cloud.creates_nothing(), pytest.raises(PermissionDenied, match=rf"refused {missing}") as refused:
        ensure(cloud.pool(**{cloud.connection: "refused"}))
    assert gke or identity in str(refused.value)
    assert "connection 'refused'; docs/iam" in str(refused.value)


def test_a_permission_to_grow_that_is_missing(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups are there, at size 0 and without a machine, and nobody wants anything of them."""
    missing = "autoscaling:SetDesiredCapacity"
    if cloud.sandbox.platform == "gke":
        missing = "compute.instanceGroupManagers.update"
    _refuse(cloud, missing, monkeypatch)
    with pytest.raises(PermissionDenied, match=rf"refused {missing}.*connection 'refused'; docs/iam"):
        ensure(cloud.pool(name=f"{NAME}-small", **{cloud.connection: "refused"}))
    groups = [group for group in cloud.groups if f"{NAME}-small" in group["nodegroup"]]
    assert [(group["desired"], group["instances"]) for group in groups] == [(0, 0)]
    # The pool's lock is there as long as the pool is; what a run has used is kept for its bill.
    left = [each.rpartition("/")[2] for each in cloud.objects(f"{NAME}-small")]
    assert [name for name in left if not name.startswith("usage-")] == [f"lock-{NAME}-small"]


def test_a_permission_of_the_cluster_that_is_missing(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    cloud = _eks(gpu_sandbox)
    key = gpu_sandbox.aws.add_identity("bad-input-nobody")
    gpu_sandbox.authenticator.access_entries[key.arn] = ["nobodies"]
    monkeypatch.setenv(
        "AIRFLOW_CONN_NOBODY",
        json.dumps(aws_identity.connection(gpu_sandbox, key)),
    )
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    try:
        says = r'denies permission to \w+ leases.*resources \["leases"\], verbs \["\w+"\].*docs/rbac/'
        with cloud.creates_nothing(), pytest.raises(PermissionDenied, match=says):
            ensure(cloud.pool(aws_conn_id="nobody"))
    finally:
        del gpu_sandbox.authenticator.access_entries[key.arn]


NOT_POSSIBLE = [
    ({"nodes": 3}, "3 nodes are wanted, but max_nodes is 2"),
    ({"nodes": 1, "at_least": 2}, "at_least=2 is 2 nodes; 1 are wanted"),
    ({"nodes": 2, "at_least": 0}, "0 nodes are wanted"),
    ({"nodes": 2, "at_least": 1, "all_or_nothing": True}, "exclude each other"),
    ({"nodes": 2, "give_up_after": timedelta(minutes=1)}, "shorter than timeout"),
]


@pytest.mark.parametrize(("arguments", "says"), NOT_POSSIBLE)
def test_what_cannot_be_wanted_is_refused_when_the_dag_is_parsed(
    cloud: Cloud, arguments: dict[str, Any], says: str
) -> None:
    pool, more = cloud.pool(), {name: value for name, value in arguments.items() if name != "nodes"}

    def parse() -> None:
        with DAG("nightly"), gpu_nodes(pool, nodes=arguments["nodes"], ensure_args=more):
            raise AssertionError("the block was opened")

    with cloud.creates_nothing(), pytest.raises(PoolSpecError, match=says):
        parse()


def test_two_specs_for_one_group_name_both_and_change_nothing(cloud: Cloud) -> None:
    pool = cloud.pool(name=f"{NAME}-drift")
    first = _operator(pool)
    run(first, context_of(first, dag_id="first"))
    try:
        groups = cloud.groups
        second = _operator(cloud.pool(name=pool.name, node_labels={"team": "vision"}))
        with pytest.raises(PoolDrift, match=r"DAG first wants .* node labels none instead of team=vision") as drift:
            run(second, context_of(second, dag_id="second"))
        assert cloud.groups == groups
        assert isinstance(drift.value, GpuError)
        assert not drift.value.retryable
    finally:
        with pytest.raises(NodesNotReady):
            first._resume_without_event(RuntimeError("no triggerer"), context_of(first, dag_id="first"))  # type: ignore[arg-type]
        eventually(lambda: not any(group["desired"] for group in cloud.groups))
