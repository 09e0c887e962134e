"""Carries a block's record of its last nights from one run to the next, by the XComs of its scale-down.

Nothing here fails a task: a record that cannot be read or kept is logged, and begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.reports.night_history import HISTORY, Night, NightHistory
from airflow_gpu_provider.tasks.block_tasks import BlockTask, as_parsed, releasing
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_gpu_provider.clouds.base import Group
    from airflow_gpu_provider.cluster.model.pod_state import Json

MOST_TRAININGS = 8
"""Of how many trainings of a block the timelines are read: each is a request to Airflow."""

_log = logging.getLogger(__name__)


def read_history(task: BaseOperator, context: Context) -> NightHistory:
    """Return the record that the last scale-down of an Ensure's block has left, of this run or an earlier one."""
    try:
        parsed = as_parsed(task)
        after = {each.task_id: BlockTask.of(each) for each in parsed.get_flat_relatives(upstream=False)}
        found = releasing(BlockTask.of(parsed), after)
        return _of_task(found[0], context) if found else NightHistory()
    except Exception:  # noqa: BLE001 - of a custom XCom backend, too
        _log.info("The record of earlier nights could not be read", exc_info=True)
        return NightHistory()


def keep_night(task: BaseOperator, context: Context, usage: Json, observe: Callable[[], Sequence[Group]]) -> None:
    """Push the record of a scale-down's block with this run's night.

    `usage` is the XCom of that name; `observe` returns the pool's groups.
    """
    try:
        ti: Any = context["ti"]
        of_block = _of_block(task)
        ensures = [name for name, role in of_block.items() if role == "ensure"]
        trainings = [name for name, role in of_block.items() if role == "training"][:MOST_TRAININGS]
        night = Night.of(
            ti.run_id,
            usage,
            ensured=_pulled(ti, ensures[:1], "return_value"),
            timelines=[each for name in trainings if (each := _pulled(ti, [name], "timeline"))],
            groups=observe(),
            state=_state(ti, trainings),
        )
        if night is not None:
            push(context, HISTORY, _of_task(ti.task_id, context).with_night(night).to_json())
    except Exception:  # noqa: BLE001
        _log.warning("The record of this block's nights could not be kept", exc_info=True)


def _of_task(task_id: str, context: Any) -> NightHistory:
    ti = context["ti"]
    kept = ti.xcom_pull(task_ids=task_id, key=HISTORY, map_indexes=ti.map_index, include_prior_dates=True)
    return NightHistory.parse(kept)


def _of_block(task: Any) -> dict[str, str]:
    if not task.has_dag():
        return {}
    parsed = as_parsed(task)
    mine, found = BlockTask.of(parsed), {each.task_id: BlockTask.of(each) for each in parsed.dag.tasks}
    return {name: each.role for name, each in sorted(found.items()) if each.may_share_nodes_of(mine)}


def _pulled(ti: Any, tasks: Sequence[str], key: str) -> Any:
    return ti.xcom_pull(task_ids=tasks[0], key=key, map_indexes=ti.map_index) if tasks else None


def _state(ti: Any, trainings: Sequence[str]) -> str:
    if not trainings:
        return ""
    own_index = {} if ti.map_index is None or ti.map_index < 0 else {"map_index": ti.map_index}
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[*trainings], run_ids=[ti.run_id], **own_index)
    found = set(states.get(ti.run_id, {}).values())
    if found & {"failed", "upstream_failed"}:
        return "failed"
    return "success" if found and found <= {"success", "skipped"} else ""
