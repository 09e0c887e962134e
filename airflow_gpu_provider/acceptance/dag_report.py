"""What a DAG run of example_dags/accept_pool.py has shown, as the command's report: from its tasks' states and XComs.

The tasks ran in other processes, so there is no count of their API calls; and who waits for a pod is not killed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_gpu_provider.acceptance.budget import Budget
from airflow_gpu_provider.acceptance.gpu_program import RESULT
from airflow_gpu_provider.acceptance.pools import CloudPool
from airflow_gpu_provider.acceptance.remains import Listed, in_cloud
from airflow_gpu_provider.acceptance.report import Expected, markdown
from airflow_gpu_provider.acceptance.steps import StepReport
from airflow_gpu_provider.cluster.clock import SystemClock


def report_of_run(
    ti: Any, *, pools: Sequence[CloudPool], image: str, budget: Budget, steps: Mapping[str, Sequence[str]]
) -> tuple[str, bool]:
    """Return the report of a DAG run, and whether all of it has passed.

    Args:
        ti: The reporting task's instance.
        pools: The pools that were tried, rendered; the first one gives the report its name.
        image: The pods' image.
        budget: The bound that was said first.
        steps: The ids of each step's tasks, by the step's name.
    """
    ids = [task for tasks in steps.values() for task in tasks]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=ids, run_ids=[ti.run_id]).get(ti.run_id, {})
    reports = [_step(ti, name, tasks, states) for name, tasks in steps.items()]
    lists = in_cloud(pools)
    reports.append(_nothing_is_left(lists))
    text = markdown(
        pool=pools[0],
        image=image,
        budget=budget,
        at=SystemClock().now(),
        steps=reports,
        facts=_facts(ti, ids),
        lists=lists,
        calls={},
        expected=Expected.on(pools[0].kind),
    )
    return text, all(each.outcome == "passed" for each in reports)


def _step(ti: Any, name: str, tasks: Sequence[str], states: Mapping[str, str | None]) -> StepReport:
    report = StepReport(name, "passed" if all(states.get(task) == "success" for task in tasks) else "failed")
    for task in tasks:
        if states.get(task) != "success":
            report.lines.append(f"{task} is {states.get(task) or 'not begun'}")
        result = ti.xcom_pull(task_ids=task)
        timeline = ti.xcom_pull(task_ids=task, key="timeline") or ()
        if isinstance(result, Mapping):
            timeline = timeline or result.get("timeline") or ()
            if "desired" in result:
                report.phases.append(("scale down: machines gone", float(result["seconds"])))
        what = task.rpartition(".")[2].replace("_", " ")
        report.phases += [(f"{what}: {each['phase']}", float(each["seconds"])) for each in timeline]
    report.seconds = sum(seconds for _, seconds in report.phases)
    return report


def _facts(ti: Any, tasks: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for task in tasks:
        result = ti.xcom_pull(task_ids=task)
        if isinstance(result, Mapping):
            found |= {word: str(result[key]) for key, word in RESULT.items() if key in result}
            if result.get("served_by"):
                found["GPUs are handed out by"] = str(result["served_by"])
    return found


def _nothing_is_left(lists: Sequence[Listed]) -> StepReport:
    left = [str(each) for each in lists if each.left]
    unasked = [str(each) for each in lists if each.unasked]
    return StepReport("nothing is left", "failed" if left or unasked else "passed", lines=[*left, *unasked])
