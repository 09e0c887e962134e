"""A night by the example DAG in a real Airflow, run by the Python that has the wheels: FOLDER, names of variables."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from gpu_sandbox.airflow_home import AirflowHome

DAG_ID = "nightly_training_eks"


def main(folder: Path, variables: list[str]) -> None:
    dags = folder / "dags"
    dags.mkdir()
    shutil.copy(Path(__file__).parents[2] / f"example_dags/{DAG_ID}.py", dags)
    with AirflowHome(folder / "airflow", dags, {name: os.environ[name] for name in variables}) as airflow:
        airflow.api.wait_for_dag(DAG_ID)
        run = airflow.api.trigger(DAG_ID)
        ended = airflow.api.wait_for_run(run.dag_id, run.run_id)
        tasks = {task.task_id: task.state for task in airflow.api.tasks(run.dag_id, run.run_id)}
        if ended.state != "success":
            sys.exit(f"the night is {ended.state}: {tasks}")
        accuracy = airflow.api.xcom(run.dag_id, run.run_id, "train")["accuracy"]
        print(f"the night is green, with an accuracy of {accuracy}: {tasks}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
