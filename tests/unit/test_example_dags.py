"""The files of example_dags/: each parses, and where a cluster comes and goes with the run, its colour is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

FOLDER = Path(__file__).parents[2] / "example_dags"


@pytest.fixture(scope="module")
def examples() -> dict[str, DAG]:
    bags = [DagBag(file) for file in sorted(FOLDER.glob("*.py"))]
    assert [bag.import_errors for bag in bags if bag.import_errors] == []
    return {dag_id: dag for bag in bags for dag_id, dag in bag.dags.items()}


def test_each_file_is_one_dag_of_its_name(examples: dict[str, DAG]) -> None:
    assert set(examples) == {file.stem for file in FOLDER.glob("*.py")}


@pytest.mark.parametrize("name", ["whole_cluster_eks", "whole_cluster_gke"])
def test_a_run_with_a_cluster_of_its_own_is_green_only_if_the_work_and_the_deletion_succeeded(
    examples: dict[str, DAG], name: str
) -> None:
    """A run's state is that of its leaves: the block's verdict is one, and the cluster's deletion is the other."""
    dag = examples[name]
    leaves = {task.task_id: task for task in dag.tasks if not task.downstream_task_ids}
    assert set(leaves) == {"night-gpu.done", "delete_cluster"}
    assert all(task.is_teardown and task.on_failure_fail_dagrun for task in leaves.values())
    # The cluster goes whatever failed, and not before its machines have.
    assert leaves["delete_cluster"].upstream_task_ids == {"create_cluster", "night-gpu.scale_down"}
    assert dag.get_task("create_cluster").is_setup
    assert "create_cluster" in dag.get_task("night-gpu.begin").upstream_task_ids


@pytest.mark.parametrize("where", ["us-east1", "us-east1-b"])
def test_the_gke_cluster_of_one_night_may_be_in_any_zone_or_region(examples: dict[str, DAG], where: str) -> None:
    """Whatever zones are named are of the region, and there: us-east1 has no zone -a, and a zone has no zones."""
    create = examples["whole_cluster_gke"].get_task("create_cluster")
    context = {"var": {"value": {"gpu_location": where}}}
    body = create.render_template(create.body, context)
    zones = {zone for node_pool in body["node_pools"] for zone in node_pool.get("locations", ())}
    assert zones <= {"us-east1-b", "us-east1-c", "us-east1-d"}


@pytest.mark.parametrize("name", ["deployment_on_gpus_eks", "deployment_on_gpus_gke"])
def test_a_deployment_goes_before_its_nodes_do(examples: dict[str, DAG], name: str) -> None:
    dag = examples[name]
    undeploy, gone = dag.get_task("undeploy"), dag.get_task("until_gone")
    assert undeploy.is_teardown
    assert gone.is_teardown
    assert gone.upstream_task_ids == {"deploy", "undeploy"}
    (scale_down,) = (task for task in dag.tasks if task.task_id.endswith(".scale_down"))
    assert "until_gone" in scale_down.upstream_task_ids


def test_an_acceptance_costs_nothing_unasked_and_deletes_whatever_happened(examples: dict[str, DAG]) -> None:
    dag = examples["accept_pool"]
    assert dag.params["it_costs"] is False
    assert dag.get_task("doctor").upstream_task_ids == {"say_what_it_may_cost"}
    for task_id in ("delete_pool", "delete_fallback", "report"):
        assert dag.get_task(task_id).trigger_rule == "all_done"
    assert dag.get_task("report").upstream_task_ids >= {"delete_pool", "delete_fallback"}
