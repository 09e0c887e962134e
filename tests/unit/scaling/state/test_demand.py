"""Demand on an API server: written, replaced, listed, given up; and Leases that others have written or broken."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, call
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, LEASES
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.demand import DemandLease, QuotaCheck
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand, list_demand, write_demand
from tests.demand_leases import NOW, check_that_demand_is_kept, lease, unlocked
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient


@pytest.fixture
def api() -> Any:
    return FakeApiClient(ApiServer())


@pytest.fixture
def pool() -> str:
    return "train"


def test_demand_is_written_replaced_listed_and_given_up(api: Any, pool: str) -> None:
    check_that_demand_is_kept(api, pool)


def test_what_a_run_saw_of_quotas_lies_on_its_demand(api: Any, pool: str) -> None:
    for seen in (QuotaCheck(at=NOW, groups=("a", "b")), QuotaCheck(at=NOW, groups=()), None):
        write_demand(api, lease(pool, over_quota=seen), check=unlocked)
        assert [each.over_quota for each in list_demand(api, pool)] == [seen]


@pytest.mark.parametrize("text", ["many", "[]", '{"at": "yesterday", "groups": []}', '{"at": "2026-03-01T02:00:00Z"}'])
def test_quotas_that_cannot_be_read_count_as_not_asked(api: Any, pool: str, text: str) -> None:
    raw = lease(pool, over_quota=QuotaCheck(at=NOW, groups=("a",))).manifest()
    raw["metadata"]["annotations"]["airflow-gpu-provider/over-quota"] = text
    found = DemandLease.parse(raw)
    assert found == lease(pool)
    assert "over-quota" in str(found.unreadable)


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


def test_long_lists_are_read_to_the_end(api: Any, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.cluster.api.rest._PAGE", 2)
    leases = [lease(pool, f"run-{n}") for n in range(5)]
    for each in leases:
        write_demand(api, each, check=unlocked)
    assert len(list_demand(api, pool)) == 5
    for each in leases:
        delete_demand(api, each.key)
