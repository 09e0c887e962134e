"""What depends on a real API server: apply, permissions, credentials; and that demand and its lock work on one."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.nodes import list_nodes
from airflow_gpu_provider.cluster.api.rest import call, server_side_apply
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    CredentialsError,
    PermissionDenied,
)
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.lock import PoolLock
from gpu_sandbox.control_plane import ControlPlane
from tests.demand_leases import check_that_demand_is_kept
from tests.kubeconfig import access_of


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Any:
    return access_of(control_plane.kubeconfig).api_client()


@pytest.fixture
def pool() -> str:
    """A name of its own for each test: the control plane is shared."""
    return f"pool-{uuid.uuid4().hex[:8]}"


def test_demand_is_written_replaced_listed_and_given_up(api: Any, pool: str) -> None:
    check_that_demand_is_kept(api, pool)


def lock(api: Any, pool: str, holder: str, **seconds: float) -> PoolLock:
    """A lock; `seconds` are those of its arguments."""
    return PoolLock(api, pool, holder, **{name: timedelta(seconds=value) for name, value in seconds.items()})


def test_two_threads_are_never_in_the_lock_at_once(api: Any, pool: str) -> None:
    inside, most, turns = [0], [0], [0]

    def work(name: str) -> None:
        for _ in range(5):
            with lock(api, pool, name, timeout=240):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                turns[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], turns[0]) == (1, 20)


def test_apply_says_what_it_did(api: Any, pool: str) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": pool, "namespace": "default"},
        "data": {"a": "1"},
    }
    assert server_side_apply(api, manifest, dry_run=True) == "created"
    assert server_side_apply(api, manifest) == "created"
    assert server_side_apply(api, manifest) == "unchanged"
    assert server_side_apply(api, {**manifest, "data": {"a": "2"}}) == "configured"
    call(api, "delete", f"/api/v1/namespaces/default/configmaps/{pool}", resource="configmaps")


def test_a_missing_permission_names_verb_and_resource(control_plane: ControlPlane, api: Any) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = call(api, "create", path, resource="serviceaccounts/token", body=request)["status"]["token"]
    access = ClusterAccess(server=control_plane.server, ca_data=control_plane.ca_data, token=lambda: token)
    with pytest.raises(
        PermissionDenied, match=r'serviceaccount:default:default.*resources \["nodes"\], verbs \["list"\]'
    ):
        list_nodes(access.api_client(), {POOL_LABEL: "any"})


def test_refused_credentials_are_tried_once_more_with_a_new_token(control_plane: ControlPlane) -> None:
    made = []

    def make() -> str:
        made.append(1)
        return "not a token"

    access = ClusterAccess(server=control_plane.server, ca_data=control_plane.ca_data, token=make)
    with pytest.raises(CredentialsError):
        list_nodes(access.api_client(), {POOL_LABEL: "any"})
    assert len(made) == 2


def test_a_server_with_another_certificate_is_not_trusted(control_plane: ControlPlane) -> None:
    with pytest.raises(ClusterUnreachable, match=r"(?i)certificate"):
        list_nodes(ClusterAccess(server=control_plane.server).api_client(), {POOL_LABEL: "any"})
