"""The example DAG of a team's queue, under the real Kueue: each training gets its turn, and says why it waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes import client, config, dynamic

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import TASK_ENDED, wait_until
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import example_dags, training_image, trees_image
from gpu_sandbox.nodes import NodeSpec
from tests.airflow.conftest import REPOSITORY
from tests.engines.test_engines import A_GANG, QUEUES, create
from tests.inherited import INHERITED

pytestmark = pytest.mark.nightly

DAG_ID = "team_queue"
ONE_GPU = A_GANG.replace("completions: 2", "completions: 1").replace("parallelism: 2", "parallelism: 1")
NO_QUOTA = "insufficient unused quota for nvidia.com/gpu"


@pytest.fixture
def queue() -> Iterator[Sandbox]:
    """Two nodes of one GPU each, and the LocalQueue team-a with a quota of two GPUs, one of which a Job has."""
    # The account of its own lets it run beside the sandbox of another file, which pytest's worker still has.
    with Sandbox(
        cluster_name="shared",
        account_id="666666666666",
        engines=("kueue",),
        images=(training_image(), trees_image()),
    ) as sandbox:
        for number in range(2):
            labels = {"gpus": "true", "topology.kubernetes.io/zone": "rack-1"}
            sandbox.agent.add_node(
                NodeSpec(name=f"machine-{number}", gpus=1, labels=labels, device_plugin_builtin=True)
            )
        with config.new_client_from_config(str(sandbox.kubeconfig)) as api:
            objects = dynamic.DynamicClient(api)
            for each in (*QUEUES, ONE_GPU % "holder"):
                create(objects, each)
        yield sandbox


def test_each_training_of_the_team_gets_its_turn(queue: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    dags = tmp_path_factory.mktemp("dags")
    (dags / f"{DAG_ID}.py").symlink_to(example_dags() / f"{DAG_ID}.py")
    env = queue.env() | {"PYTHONPATH": python_path(REPOSITORY)}
    with AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env, parallelism=8, inherited=INHERITED) as home:
        home.api.wait_for_dag(DAG_ID)
        run = home.api.trigger(DAG_ID, conf={})
        begun = frozenset({"running", "deferred"}) | TASK_ENDED
        home.api.wait_for_task(DAG_ID, run.run_id, "on_two_nodes", states=begun)
        wait_until(lambda: NO_QUOTA in log_of(home, run.run_id, "on_two_nodes"), what="its place in the queue")
        with config.new_client_from_config(str(queue.kubeconfig)) as api:
            client.BatchV1Api(api).delete_namespaced_job("holder", "default", propagation_policy="Background")
        ended = home.api.wait_for_run(DAG_ID, run.run_id)
        tasks = [task for task in home.api.tasks(DAG_ID, run.run_id) if task.task_id in ("single", "on_two_nodes")]
        logs = [log_of(home, run.run_id, task.task_id, map_index=task.map_index) for task in tasks]
        of_both = log_of(home, run.run_id, "on_two_nodes")
    assert ended.state == "success", logs
    assert len(tasks) == 4
    assert "in queue team-a" in of_both
    assert NO_QUOTA in of_both
    assert "[rank 1]" in of_both


def log_of(home: AirflowHome, run_id: str, task_id: str, *, map_index: int = -1) -> str:
    return "\n".join(line.event for line in home.api.log(DAG_ID, run_id, task_id, map_index=map_index))
