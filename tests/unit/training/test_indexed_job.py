"""A pod as an Indexed Job: what Kubernetes is told, and what each rank finds in its environment."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION
from airflow_gpu_provider.training.place.indexed_job import (
    LONGEST_NAME,
    headless_service,
    indexed_job,
    job_name,
)


def a_pod(**changes: Any) -> dict[str, Any]:
    base = {"name": "base", "image": "train:1", "env": [{"name": "MASTER_PORT", "value": "1234"}]}
    spec = {"containers": [base, {"name": "airflow-xcom-sidecar", "command": ["sh", "-c", "x"]}], **changes}
    meta = {
        "name": "train-abc",
        "namespace": "ml",
        "labels": {"airflow-gpu-provider/run": "r"},
        "annotations": {"a": "b"},
    }
    return {"metadata": meta, "spec": {"activeDeadlineSeconds": 600, **spec}}


def job(own_deadline: int | None = None, **changes: Any) -> dict[str, Any]:
    return indexed_job(a_pod(**changes), nodes=3, gpus=8, base_container="base", own_deadline=own_deadline)


def environment(made: dict[str, Any]) -> dict[str, Any]:
    base = made["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in base["env"]}


def test_the_job_is_suspended_and_restarts_nothing() -> None:
    spec = job()["spec"]
    assert (spec["suspend"], spec["completionMode"], spec["completions"], spec["parallelism"]) == (
        True,
        "Indexed",
        3,
        3,
    )
    assert spec["backoffLimitPerIndex"] == 0


def test_the_deadline_is_the_job_s_which_can_be_raised_but_for_the_author_s_own() -> None:
    spec = job()["spec"]
    assert spec["activeDeadlineSeconds"] == 600 + 120
    assert "activeDeadlineSeconds" not in spec["template"]["spec"]
    assert job(own_deadline=900)["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 900
    assert "activeDeadlineSeconds" not in job(activeDeadlineSeconds=None)["spec"]


def test_job_and_pods_say_whose_they_are() -> None:
    made = job()
    for meta in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert meta["labels"] == {"airflow-gpu-provider/run": "r", "airflow-gpu-provider/gang": "3"}
        assert meta["annotations"].pop(DEADLINE_ANNOTATION, "") == ""
        assert meta["annotations"] == {"a": "b"}


def test_queue_is_the_jobs_alone() -> None:
    body = a_pod()
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    made = indexed_job(body, nodes=3, gpus=8, base_container="base")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/queue-name" not in made["spec"]["template"]["metadata"]["labels"]


def test_ranks_find_each_other_and_the_users_own_values_win() -> None:
    found = environment(job())
    assert found["PET_NNODES"] == "3"
    assert found["PET_NPROC_PER_NODE"] == "8"
    assert found["AIRFLOW_GPU_HOSTS"] == "train-abc-0.train-abc,train-abc-1.train-abc,train-abc-2.train-abc"
    assert found["MASTER_ADDR"] == "train-abc-0.train-abc"
    assert found["MASTER_PORT"] == "1234"
    assert "job-completion-index" in found["PET_NODE_RANK"]["fieldRef"]["fieldPath"]
    assert not {"RANK", "WORLD_SIZE"} & found.keys()


def test_each_rank_has_a_node_of_its_own_beside_the_users_affinity() -> None:
    own = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    affinity = job(affinity=own)["spec"]["template"]["spec"]["affinity"]
    terms = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in terms] == ["rack", "kubernetes.io/hostname"]
    (near,) = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"


def test_only_rank_0_keeps_a_result() -> None:
    sidecar = job()["spec"]["template"]["spec"]["containers"][1]
    assert sidecar["command"][2].startswith('[ "$JOB_COMPLETION_INDEX" = 0 ] || exit 0')


def test_service_goes_with_the_job_and_names_ranks_that_are_not_ready() -> None:
    made = job()
    made["metadata"]["uid"] = "u1"
    service = headless_service(made)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u1"


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,53}[a-z0-9])?-[a-z0-9]{8}", fullmatch=True))
def test_name_is_a_label_with_its_random_end(name: str) -> None:
    made = job_name(name)
    assert len(made) <= LONGEST_NAME
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert made.endswith(name[-8:])
