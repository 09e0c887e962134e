"""Nights in the clouds' own times on a quicker clock, with reads that are old, and the documented roles alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import config

from airflow_gpu_provider.cluster.api.rest import server_side_apply
from gpu_sandbox.managed_cluster import Platform
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles
from tests.sandbox.test_same_dag import eks, gke, holds, one_night

pytestmark = pytest.mark.nightly

SPEED = 20
GROUP = "airflow-gpu-provider"


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    platform: Platform = request.param
    # The shared sandbox has the usual account in this process.
    settings: dict[str, Any] = {"account_id": "345678901234"} if platform == "eks" else {}
    with Sandbox(platform=platform, pace="real", speed=SPEED, seed=12, progress=print, **settings) as sandbox:
        yield sandbox


@pytest.fixture
def airflow(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as an Airflow on the sandbox, with the documented role and the documented RBAC."""
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    name, connection, user = _on_eks(sandbox) if sandbox.platform == "eks" else _on_gke(sandbox)
    monkeypatch.setenv(name, json.dumps(connection))
    sandbox.authenticator.access_entries[user] = [GROUP]
    administrator = config.new_client_from_config(str(sandbox.kubeconfig))
    # GKE brings the device plugin itself.
    roles = documented_roles.FULL_ROLES if sandbox.platform == "eks" else ("full.yaml",)
    for manifest in documented_roles.role_manifests(*roles):
        server_side_apply(administrator, manifest)


def _on_eks(sandbox: Sandbox) -> tuple[str, dict[str, Any], str]:
    policy = documented_roles.policy("eks-full.json", **documented_roles.of_cluster(sandbox, "train-eks"))
    key = sandbox.aws.add_identity("airflow", policy=policy)
    return "AIRFLOW_CONN_AWS_DEFAULT", aws_identity.connection(sandbox, key), key.arn


def _on_gke(sandbox: Sandbox) -> tuple[str, dict[str, Any], str]:
    account = sandbox.google.add_identity("airflow", permissions=documented_roles.google_role("gke-full.json"))
    return "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", sandbox.google.connection(account), account.email


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize("sandbox", ["eks", "gke"], indirect=True)
def test_a_night_with_the_documented_roles_alone_goes_from_nothing_to_nothing(sandbox: Sandbox) -> None:
    one_zone = {"zones": [sandbox.zones[0]]} if sandbox.platform == "eks" else {"node_locations": [sandbox.zones[0]]}
    pool = eks(sandbox, **one_zone) if sandbox.platform == "eks" else gke(sandbox, **one_zone)

    holds(one_night(pool))

    left = {group["name"]: group["desired"] for group in sandbox.describe()["groups"] if group["desired"]}
    assert not left
