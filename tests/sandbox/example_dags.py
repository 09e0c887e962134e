"""The files of example_dags/, read as the DAG processor does, and their tasks run one by one without a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.execution_time.context import VariableAccessor

from tests.sandbox.running import context_of, run

FOLDER = Path(__file__).parents[2] / "example_dags"


def load(name: str) -> DAG:
    """Return the DAG of an example, as the DAG processor reads its file."""
    bag = DagBag(FOLDER / f"{name}.py")
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    return dag


def rendered(task: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the task as a worker executes it, its templates rendered, and its context."""
    task = task.prepare_for_execution()
    context = context_of(task) | {
        "dag": task.dag,
        "params": task.dag.params.dump(),
        "var": {
            "value": VariableAccessor(deserialize_json=False),
            "json": VariableAccessor(deserialize_json=True),
        },
    }
    task.render_template_fields(context)
    return task, context


def run_tasks(dag: DAG, *, watch: Callable[[str], None] = lambda task_id: None) -> dict[str, Any]:
    """Run a DAG's tasks in order, as workers and a triggerer would, and return what each returned.

    A block's last task is left out: it reads what Airflow's database says of the others. `watch` is called with the
    id of each task that has run.
    """
    results: dict[str, Any] = {}
    for task in dag.topological_sort():
        if not task.task_id.endswith(".done"):
            results[task.task_id] = run(*rendered(task))
            watch(task.task_id)
    return results
