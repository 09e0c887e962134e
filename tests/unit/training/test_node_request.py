"""What a gang's Job says of its nodes, and what is made of it: a PodTemplate and a ProvisioningRequest."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.errors import ObjectRejected
from airflow_gpu_provider.training.life.run import Ownership
from airflow_gpu_provider.training.life.store import TaskGangs
from airflow_gpu_provider.training.place.indexed_job import ask_for_nodes, indexed_job, node_request
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.clouds.google.test_gke_pool import FLEX_START, pool
from tests.unit.training.test_indexed_job import a_pod

QUEUED = pool(**FLEX_START, queued_provisioning=True)
REQUEST, TEMPLATE = (
    "apis/autoscaling.x-k8s.io/v1/namespaces/ml/provisioningrequests/train-abc",
    ("api/v1/namespaces/ml/podtemplates/train-abc"),
)
OWNER = Ownership(
    key=DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu"), task_id="t", map_index=-1, try_id="t1"
)


def job(queue: str = "", **fields: Any) -> dict[str, Any]:
    body = a_pod(affinity={"nodeAffinity": {"of": "the user's"}}, tolerations=[{"key": "x"}])
    if queue:
        body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue
    made = indexed_job(body, nodes=3, gpus=1, base_container="base")
    ask_for_nodes(made, pool(**{**FLEX_START, "queued_provisioning": True, **fields}))
    made["metadata"]["uid"] = "j1"
    return made


def test_a_gang_asks_for_all_of_its_nodes_and_its_pods_for_those() -> None:
    made = job()
    found = node_request(made)
    assert found is not None
    template, request = found
    assert made["spec"]["template"]["metadata"]["annotations"] == {
        "a": "b",
        "autoscaling.x-k8s.io/consume-provisioning-request": "train-abc",
        "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io",
    }
    assert request["spec"] == {
        "provisioningClassName": "queued-provisioning.gke.io",
        "parameters": {"maxRunDurationSeconds": str(int(QUEUED.node_lifetime.total_seconds()))},  # type: ignore[union-attr]
        "podSets": [{"count": 3, "podTemplateRef": {"name": "train-abc"}}],
    }
    for each in (template, request):
        assert each["metadata"]["name"] == "train-abc"
        assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == ["j1"], "they go with the Job"
    assert template["metadata"]["labels"]["cloud.google.com/apply-warden-policies"] == "true"


def test_the_template_has_what_the_scheduler_goes_by_but_what_is_between_pods() -> None:
    made = job()
    found = node_request(made)
    assert found is not None
    spec, own = found[0]["template"]["spec"], made["spec"]["template"]["spec"]
    assert spec["affinity"] == {"nodeAffinity": {"of": "the user's"}}
    assert "podAntiAffinity" in own["affinity"], "the ranks keep it"
    assert (spec["tolerations"], spec["containers"]) == (own["tolerations"], own["containers"])


def test_in_a_queue_kueue_makes_the_request_with_the_same_parameters() -> None:
    made = job(queue="team-a")
    assert node_request(made) is None
    assert "provreq.kueue.x-k8s.io/maxRunDurationSeconds" in made["metadata"]["annotations"]


def test_nothing_is_asked_for_where_nodes_come_otherwise() -> None:
    made = job(queued_provisioning=False)
    assert node_request(made) is None
    assert made["metadata"]["annotations"] == {"a": "b"}


def gangs(server: ApiServer) -> TaskGangs:
    return TaskGangs(FakeApiClient(server))  # type: ignore[arg-type]


def test_what_a_killed_worker_did_not_create_the_next_one_does() -> None:
    made = job()
    server = ApiServer()
    server.put("api/v1/namespaces/ml", {"metadata": {"name": "ml"}})
    for _ in range(2):
        gangs(server).reattach(made)
    assert server.read(REQUEST)["spec"]["podSets"][0]["count"] == 3
    assert server.read(TEMPLATE)["template"]["spec"]["containers"]


def test_what_an_earlier_job_of_the_name_has_left_makes_way() -> None:
    made, earlier = job(), job()
    server = ApiServer()
    server.put("api/v1/namespaces/ml", {"metadata": {"name": "ml"}})
    earlier["metadata"]["uid"] = "j0"
    gangs(server).reattach(earlier)
    gangs(server).reattach(made)
    for path in (REQUEST, TEMPLATE):
        assert [owner["uid"] for owner in server.read(path)["metadata"]["ownerReferences"]] == ["j1"]


@pytest.mark.parametrize("path", [REQUEST.rpartition("/")[0]])
def test_a_refusal_is_an_error(path: str) -> None:
    server = ApiServer()
    server.put("api/v1/namespaces/ml", {"metadata": {"name": "ml"}})
    server.refuse(path=path, status=422)
    with pytest.raises(ObjectRejected):
        gangs(server).reattach(job())
