"""The code of a try in a cluster: written once, found by its Lease, and deleted with it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.code_requests import delete_code, list_code, read_maps, write_maps
from airflow_gpu_provider.cluster.model.code_record import CODE, CodeRecord
from airflow_gpu_provider.cluster.model.lease import LEASES, lease_manifest
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, TASK_LABEL
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

MAPS = "/api/v1/namespaces/ml/configmaps"
CONTENTS = [{"data": {"f1": "a"}}, {"data": {"f2": "b"}}]


def record(try_id: str = "t1", run: str = "r") -> CodeRecord:
    key = DemandKey(installation="i", dag_id="d", run_id=run, pool="train-gpu")
    return CodeRecord(key=key, task="task-1", try_id=try_id, namespace="ml", maps=1)


@pytest.fixture
def api() -> Any:
    server = ApiServer()
    server.put("/api/v1/namespaces/airflow-gpu-provider", {"metadata": {"name": "airflow-gpu-provider"}})
    server.put("/api/v1/namespaces/ml", {"metadata": {"name": "ml"}})
    return FakeApiClient(server)


def names(api: Any) -> list[str]:
    return [*api.server.named("api/v1/configmaps")]


def test_a_try_has_maps_of_its_own_that_are_found_and_deleted_by_their_lease(api: Any) -> None:
    written = write_maps(api, record(), CONTENTS)
    write_maps(api, record("t2"), CONTENTS[:1])
    assert [each["data"] for each in read_maps(api, record())] == [each["data"] for each in CONTENTS]
    assert all(each["immutable"] for each in written)
    assert (
        written[0]["metadata"]["labels"].items()
        >= {
            RUN_LABEL: record().key.hash,
            TASK_LABEL: "task-1",
            POOL_LABEL: "train-gpu",
        }.items()
    )
    first, second = list_code(api, "train-gpu")
    assert {first.try_id, second.try_id} == {"t1", "t2"}
    assert delete_code(api, first)
    assert names(api) == second.map_names
    assert list_code(api, "train-gpu") == (second,)
    assert not delete_code(api, first)


def test_code_is_listed_by_its_pool_its_run_and_its_task(api: Any) -> None:
    for each in (record("t1"), record("t2", run="other")):
        write_maps(api, each, CONTENTS)
    (mine,) = list_code(api, "train-gpu", run=record().key.hash, task="task-1")
    assert mine.try_id == "t1"
    assert not list_code(api, "train-gpu", task="task-2")
    assert not list_code(api, "another")


def test_what_an_interrupted_call_has_left_is_not_taken_and_is_replaced(api: Any) -> None:
    write_maps(api, record(), CONTENTS)
    api.server.remove(f"{MAPS}/{record().name}-2")
    assert read_maps(api, record()) == ()
    changed = [{"data": {"f1": "new"}}]
    write_maps(api, record(), changed)
    assert [each["data"] for each in read_maps(api, record())] == [{"f1": "new"}]


@pytest.mark.parametrize(
    "notes", [{}, {"airflow-gpu-provider/namespace": "../secrets", "airflow-gpu-provider/maps": "1"}]
)
def test_a_lease_that_somebody_has_edited_deletes_nothing(
    api: Any, notes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    labels = {POOL_LABEL: "train-gpu", TASK_LABEL: "task-1"}
    api.server.put(f"{LEASES}/code-x", lease_manifest("code-x", CODE, labels=labels, notes=notes, spec={}))
    assert list_code(api, "train-gpu") == ()
    assert "code-x does not name its ConfigMaps" in caplog.text
