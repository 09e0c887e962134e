"""GpuPodOperator(nodes=2) under a real scheduler and triggerer: a night in which a rank is taken away."""

from __future__ import annotations

from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox.airflow_api import wait_until
from tests.airflow.gangs import jobs, objects, pod_of, until_all_run
from tests.airflow.harness import Airflow
from tests.airflow.pools import zero


def test_night_on_two_nodes_of_one_zone_outlives_the_loss_of_a_rank(airflow: Airflow) -> None:
    run = airflow.trigger("gang_night")
    until_all_run(airflow, run)
    pods = objects(airflow, run, "/api/v1/namespaces/default/pods")
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in objects(airflow, run, "/api/v1/nodes")}
    zones = [nodes[pod["spec"]["nodeName"]]["topology.kubernetes.io/zone"] for pod in pods]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert len(set(zones)) == 1
    lost = pod_of(airflow, run, rank=1)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": lost, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{lost}/eviction"
    status, reply = airflow.sandbox.control_plane.request("POST", path, eviction)
    assert status == 201, reply
    finished = airflow.finish(run)
    assert finished.state == "success", airflow.log(run, "train")
    assert finished.task("train").try_number == 1
    assert airflow.xcom(finished, "train") == {"rank": 0}
    log = airflow.log(run, "train")
    said = [log.count(f"[rank {rank}] rank {rank} of 2, attempt 2") for rank in (0, 1)]
    # A triggerer that is overloaded says that lines may come twice.
    assert said == [1, 1] or (REPEATED in log and all(said))
    assert "Rank 1: " in log
    assert {phase["attempt"] for phase in airflow.xcom(finished, "train", key="timeline")} == {1, 2}
    zero(airflow, "gang-night")
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")
