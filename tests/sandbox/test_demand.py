"""Demand, the lock, cordons, pods and apply against the real API server."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.apply import server_side_apply
from airflow_gpu_provider.cluster.clock import SystemClock
from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease, delete_demand, list_demand, write_demand
from airflow_gpu_provider.cluster.leases import DEMAND_NAMESPACE, LEASES
from airflow_gpu_provider.cluster.lock import PoolLock
from airflow_gpu_provider.cluster.nodes import CORDONED_BY, Node, cordon, list_nodes, uncordon
from airflow_gpu_provider.cluster.pods import RUN_LABEL, list_pods_on, list_pool_pods, list_run_pods
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, count_items, list_items
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    CredentialsError,
    DemandLockBusy,
    DemandLockLost,
    PermissionDenied,
)
from airflow_gpu_provider.pools.base import POOL_LABEL
from gpu_sandbox.control_plane import ControlPlane
from tests.kubeconfig import access_of

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Any:
    return access_of(control_plane.kubeconfig).api_client()


@pytest.fixture
def pool() -> str:
    """A name of its own for each test: the control plane is shared."""
    return f"pool-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def node(api: Any, pool: str) -> Iterator[Node]:
    raw = {
        "metadata": {"name": f"node-{pool}", "labels": {POOL_LABEL: pool}},
        "spec": {"providerID": "aws:///us-west-2a/i-0123"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"}],
            "allocatable": {"nvidia.com/gpu": "1"},
        },
    }
    yield Node.parse(call(api, "create", "/api/v1/nodes", resource="nodes", body=raw))
    call(api, "delete", f"/api/v1/nodes/node-{pool}", resource="nodes")


@pytest.fixture
def pods(api: Any) -> Iterator[list[str]]:
    """Paths of pods to remove at the end."""
    paths: list[str] = []
    yield paths
    for path in paths:
        try:
            call(api, "delete", path, resource="pods", body={"gracePeriodSeconds": 0})
        except ObjectNotFound:
            continue


def a_pod(api: Any, name: str, **fields: Any) -> str:
    spec = {"containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    body = {"metadata": {"name": name, "labels": fields.pop("labels", {})}, "spec": {**spec, **fields}}
    call(api, "create", "/api/v1/namespaces/default/pods", resource="pods", body=body)
    return f"/api/v1/namespaces/default/pods/{name}"


def lease(pool: str, run_id: str = "scheduled__2026-03-01T02:00:00+00:00", **fields: Any) -> DemandLease:
    key = DemandKey(installation="airflow-1", dag_id="nightly_training", run_id=run_id, pool=pool)
    return DemandLease(**{"key": key, "nodes": 1, "until": NOW + timedelta(hours=6), "created_at": NOW, **fields})


def unlocked() -> None:
    """Stand for the check of a lock that nobody else wants."""


def test_demand_is_written_replaced_listed_and_given_up(api: Any, pool: str) -> None:
    first, second = lease(pool), lease(pool, "manual__2", created_at=NOW - timedelta(minutes=1))
    write_demand(api, first, check=unlocked)
    write_demand(api, second, check=unlocked)
    write_demand(api, lease(pool, nodes=3), check=unlocked)

    assert list_demand(api, pool) == (second, lease(pool, nodes=3))
    assert list_demand(api, f"{pool}-other") == ()
    assert delete_demand(api, first.key)
    assert not delete_demand(api, first.key)
    assert list_demand(api, pool) == (second,)
    delete_demand(api, second.key)


def test_a_lease_says_in_kubectl_whose_it_is(api: Any, pool: str) -> None:
    mine = lease(pool)
    write_demand(api, mine, check=unlocked)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{DEMAND_NAMESPACE}/leases/{mine.key.lease_name}"
    raw = call(api, "get", path, resource="leases")
    assert raw["spec"]["holderIdentity"] == f"nightly_training/{mine.key.run_id}"
    delete_demand(api, mine.key)


def test_a_lease_that_somebody_broke_stays_demand(api: Any, pool: str) -> None:
    mine = lease(pool)
    write_demand(api, mine, check=unlocked)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{DEMAND_NAMESPACE}/leases/{mine.key.lease_name}"
    broken = {"airflow-gpu-provider/nodes": "many", "airflow-gpu-provider/until": "tomorrow"}
    call(api, "patch", path, resource="leases", body={"metadata": {"annotations": broken}}, content_type=MERGE_PATCH)

    (found,) = list_demand(api, pool)
    assert found == mine
    assert [mine.key.lease_name in str(each) for each in found.unreadable] == [True, True]
    delete_demand(api, mine.key)


def test_leases_of_others_are_no_demand(api: Any, pool: str, caplog: pytest.LogCaptureFixture) -> None:
    """A person's own Lease beside ours is nobody's demand; one that carries our labels is left out, and named."""
    mine = lease(pool)
    write_demand(api, mine, check=unlocked)
    labels = {"airflow-gpu-provider/kind": "demand", POOL_LABEL: pool}
    spec = {"holderIdentity": "somebody"}
    for name, carried in ((f"own-{pool}", {POOL_LABEL: pool}), (f"foreign-{pool}", labels)):
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "labels": carried},
            "spec": spec,
        }
        call(api, "create", LEASES, resource="leases", body=body)

    assert list_demand(api, pool) == (mine,)
    assert f"foreign-{pool}" in caplog.text
    assert f"own-{pool}" not in caplog.text
    for name in (f"own-{pool}", f"foreign-{pool}", mine.key.lease_name):
        call(api, "delete", f"{LEASES}/{name}", resource="leases")


def test_equal_ids_of_two_installations_and_two_blocks_of_a_run_are_demand_of_their_own(api: Any, pool: str) -> None:
    ids = {"dag_id": "nightly_training", "run_id": "manual__1", "pool": pool}
    keys = [DemandKey(installation=name, block=block, **ids) for name in ("team-a", "team-b") for block in ("", "late")]
    for key in keys:
        write_demand(api, lease(pool, key=key), check=unlocked)
    assert {each.key for each in list_demand(api, pool)} == set(keys)
    for number, key in enumerate(keys):
        delete_demand(api, key)
        assert {each.key for each in list_demand(api, pool)} == set(keys[number + 1 :])


def lock(api: Any, pool: str, holder: str, **seconds: float) -> PoolLock:
    """A lock; `seconds` are those of its arguments."""
    return PoolLock(api, pool, holder, **{name: timedelta(seconds=value) for name, value in seconds.items()})


def test_the_lock_is_one_holder_s_and_can_be_taken_again(api: Any, pool: str) -> None:
    with lock(api, pool, "a") as first:
        first.check()
        with pytest.raises(DemandLockBusy, match="being changed by a"), lock(api, pool, "b", timeout=0.3):
            pass
        first.check()
    with lock(api, pool, "b", timeout=0.3) as second:
        second.check()


def test_a_stalled_holder_finds_the_lock_lost(api: Any, pool: str) -> None:
    stalled = lock(api, pool, "stalled", duration=1)
    stalled.__enter__()
    with lock(api, pool, "next", timeout=120) as later:
        with pytest.raises(DemandLockLost, match="stalled stalled and lost the lock"):
            stalled.check()
        stalled.__exit__(None, None, None)
        later.check()


def test_a_holder_that_stalls_in_its_check_has_lost_the_lock_though_nobody_took_it(api: Any, pool: str) -> None:
    class Stalling(SystemClock):
        stalled_for = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.stalled_for

    class Suspended:
        """The process sleeps for a minute while its request is answered, as on a machine that is suspended."""

        def call_api(self, *args: Any, **kwargs: Any) -> Any:
            answer = api.call_api(*args, **kwargs)
            clock.stalled_for += stall
            return answer

    clock, stall = Stalling(), 0.0
    with PoolLock(Suspended(), pool, "a", clock=clock) as holder:  # type: ignore[arg-type]
        holder.check()
        stall = 60.0
        with pytest.raises(DemandLockLost, match="a stalled and lost the lock"):
            holder.check()
        stall = 0.0
    with lock(api, pool, "b", timeout=0.3) as second:  # it was given back all the same
        second.check()


def test_a_lock_that_somebody_deletes_is_free_and_its_holder_stops(api: Any, pool: str) -> None:
    with lock(api, pool, "a") as first:
        call(api, "delete", f"{LEASES}/{first.name}", resource="leases")
        with lock(api, pool, "b", timeout=120) as second:
            with pytest.raises(DemandLockLost):
                first.check()
            second.check()


def test_a_check_notices_that_another_has_it_before_the_time_is_over(api: Any, pool: str) -> None:
    holder = lock(api, pool, "a")
    holder.__enter__()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{DEMAND_NAMESPACE}/leases/{holder.name}"
    call(api, "patch", path, resource="leases", body={"spec": {"holderIdentity": "b"}}, content_type=MERGE_PATCH)
    with pytest.raises(DemandLockLost):
        holder.check()


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


def test_our_cordon_is_signed_and_undone(api: Any, pool: str, node: Node) -> None:
    assert cordon(api, node, by="me at noon")
    assert cordon(api, node, by="me again")
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordoned_by_us, now.usable) == (True, True, False)
    raw = call(api, "get", f"/api/v1/nodes/{node.name}", resource="nodes")
    assert raw["metadata"]["annotations"][CORDONED_BY] == "me at noon"

    assert uncordon(api, node)
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordon_mark) == (False, False)


def test_a_cordon_of_somebody_else_s_stays(api: Any, pool: str, node: Node) -> None:
    body = {"spec": {"unschedulable": True}}
    call(api, "patch", f"/api/v1/nodes/{node.name}", resource="nodes", body=body, content_type=MERGE_PATCH)
    assert not cordon(api, node, by="me")
    assert not uncordon(api, node)
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordoned_by_us) == (True, False)


def test_a_node_is_read_as_it_is(api: Any, pool: str, node: Node) -> None:
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.machine, now.gpus, now.ready) == ("i-0123", 1, True)


@pytest.mark.parametrize("few_nodes", [8, 0], ids=["node by node", "by one list of all"])
def test_the_pool_s_pods_are_those_on_its_nodes_and_those_that_wait_for_it(
    api: Any, pool: str, node: Node, pods: list[str], few_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.cluster.pods._FEW_NODES", few_nodes)
    monkeypatch.setattr("airflow_gpu_provider.cluster.rest._PAGE", 2)
    pods.append(a_pod(api, f"bound-{pool}", nodeName=node.name))
    pods.append(a_pod(api, f"waiting-{pool}", nodeSelector={POOL_LABEL: pool}))
    pods.append(a_pod(api, f"elsewhere-{pool}", nodeSelector={POOL_LABEL: "another"}))

    found = {pod.name: pod for pod in list_pool_pods(api, {POOL_LABEL: pool}, [node])}

    assert set(found) == {f"bound-{pool}", f"waiting-{pool}"}
    assert (found[f"bound-{pool}"].node, found[f"bound-{pool}"].gpus) == (node.name, 1)
    assert found[f"waiting-{pool}"].node is None
    assert [pod.name for pod in list_pods_on(api, [node])] == [f"bound-{pool}"]
    assert count_items(api, "/api/v1/pods", resource="pods") == len(list_items(api, "/api/v1/pods", resource="pods"))


def test_only_the_run_s_pods_on_this_pool_are_its_own(api: Any, pool: str, pods: list[str]) -> None:
    run, other = lease(pool).key.hash, lease(pool, "manual__2").key.hash
    pods.append(a_pod(api, f"mine-{pool}", labels={RUN_LABEL: run}, nodeSelector={POOL_LABEL: pool}))
    pods.append(a_pod(api, f"theirs-{pool}", labels={RUN_LABEL: other}, nodeSelector={POOL_LABEL: pool}))
    pods.append(a_pod(api, f"no-pool-{pool}", labels={RUN_LABEL: run}))

    assert [pod.name for pod in list_run_pods(api, {POOL_LABEL: pool}, run)] == [f"mine-{pool}"]


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


def test_long_lists_are_read_to_the_end(api: Any, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.cluster.rest._PAGE", 2)
    leases = [lease(pool, f"run-{n}") for n in range(5)]
    for each in leases:
        write_demand(api, each, check=unlocked)
    assert len(list_demand(api, pool)) == 5
    for each in leases:
        delete_demand(api, each.key)


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
