"""A night whose training is in a task loop, which Airflow has from 3.4 on: `make compat-airflow-3.4`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import task_group

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import TaskState, wait_until
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import example_dags
from tests.airflow.conftest import REPOSITORY
from tests.airflow.harness import Airflow
from tests.airflow.pools import pods_of, zero
from tests.inherited import INHERITED

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not hasattr(task_group(lambda: None), "loop"), reason="this Airflow has no task loops"),
]


@pytest.fixture
def airflow(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    dags = tmp_path_factory.mktemp("dags-with-loops")
    (dags / "loops.py").symlink_to(Path(__file__).parent / "dags_loops" / "loops.py")
    (dags / "example.py").symlink_to(example_dags() / "airflow_3_4" / "train_until_good_eks.py")
    env = sandbox.env() | {"PYTHONPATH": python_path(REPOSITORY)}
    with AirflowHome(tmp_path_factory.mktemp("airflow-with-loops"), dags, env, inherited=INHERITED) as home:
        yield Airflow(home, sandbox)


def test_a_clear_of_one_iteration_leaves_the_others_alone(airflow: Airflow) -> None:
    run = airflow.trigger("loop_around")

    def training(iteration: int) -> TaskState:
        tasks = airflow.api.tasks(run.dag_id, run.run_id)
        (found,) = (each for each in tasks if (each.task_id, each.region_index) == ("improve.train", iteration))
        return found

    def end(pod: str, iteration: int) -> None:
        airflow.run_in(pod, "touch", "/dev/shm/end")
        wait_until(lambda: training(iteration).state == "success", what=f"the end of {pod}")

    first, checkpoint = started(airflow)
    end(first, 0)
    second, next_checkpoint = started(airflow, first)
    airflow.api.clear_instance(run.dag_id, run.run_id, training(0).id)
    again, same_checkpoint = started(airflow, first, second)
    assert checkpoint == same_checkpoint != next_checkpoint
    end(again, 0)
    end(second, 1)
    finished = airflow.finish(run)
    assert finished.state == "success", finished.states
    usage = airflow.xcom(finished, "loop-around.scale_down", key="usage")
    assert (usage["block"], usage["machines"]) == ("loop-around", 1)
    zero(airflow, "loop-around")


def test_the_example_trains_on_one_machine_until_its_model_is_good(airflow: Airflow) -> None:
    run = airflow.run_dag("train_until_good_eks")
    assert run.state == "success", airflow.account()
    trainings = [task for task in run.tasks if task.task_id == "attempt.train"]
    assert 1 < len(trainings) <= 3
    usage = airflow.xcom(run, "train-gpu.scale_down", key="usage")
    assert usage["machines"] == 1
    zero(airflow, "train-gpu")


def started(airflow: Airflow, *others: str) -> tuple[str, str]:
    """The name and the checkpoint of a pod that runs, and is none of the others."""
    found: dict[str, str] = {}

    def runs() -> bool:
        for pod in pods_of(airflow, "loop-around"):
            if pod["status"]["phase"] == "Running" and pod["metadata"]["name"] not in others:
                env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
                found[pod["metadata"]["name"]] = env["AIRFLOW_GPU_CHECKPOINT"]
        return bool(found)

    wait_until(runs, what="another pod to run")
    return found.popitem()
