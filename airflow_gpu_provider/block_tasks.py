"""How `gpu_nodes` makes the tasks of its own, so that nothing reaches them that is meant for the author's.

A DAG's default_args are for its trainings: an image, a namespace, soft_fail for its sensors. The block's own tasks take
from there only what says how Airflow runs a task, and scale-down and verdict nothing of it that could keep them from
running or hide how they ended. Everything else has the operator's own default, or what the block's author gives in
`ensure_args`, `device_plugin_args` and `scale_down_args`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pool_operator import argument_defaults

Operator = TypeVar("Operator", bound=BaseOperator)

TAKEN_BY_ALL = frozenset(
    {
        *("owner", "email", "email_on_retry", "email_on_failure"),
        *("on_execute_callback", "on_failure_callback", "on_success_callback", "on_retry_callback"),
        "on_skipped_callback",
        *("queue", "executor", "executor_config", "run_as_user", "resources", "priority_weight"),
        *("start_date", "end_date", "sla", "do_xcom_push", "map_index_template", "logger_name"),
        *("doc", "doc_md", "doc_json", "doc_yaml", "doc_rst"),
    }
)
"""What each of the block's own tasks takes from default_args."""

TAKEN_BY_SETUPS = TAKEN_BY_ALL | {
    *("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "retry_policy", "execution_timeout"),
    *("pool", "pool_slots", "weight_rule", "max_active_tis_per_dag", "max_active_tis_per_dagrun"),
    *("pre_execute", "post_execute"),
}
"""What Ensure and the device plugin's operator take besides: scale-down runs whatever becomes of them."""

TAKEN_BY_BEGIN = TAKEN_BY_SETUPS | {
    *("trigger_rule", "depends_on_past", "wait_for_downstream", "wait_for_past_depends_before_skipping"),
}
"""What the block's first task takes besides: it decides for the block whether and when it starts."""

_OF_THE_BLOCK = frozenset({"task_id", "dag", "task_group", "trigger_rule", "start_date", "end_date"})


def own_task(
    operator: type[Operator],
    task_id: str,
    given: Mapping[str, Any] | None = None,
    *,
    taken: frozenset[str],
    more: Mapping[str, Any] | None = None,
) -> Operator:
    """Return a task of the block's own.

    Args:
        operator: Its class.
        task_id: Its id.
        given: Arguments that the block gives.
        taken: Names of those that default_args may give; all others have their defaults.
        more: Arguments of the block's author for it.

    Raises:
        PoolSpecError: `more` has an argument that is the block's own.
    """
    given = given or {}
    refused = sorted((more or {}).keys() & {*_OF_THE_BLOCK, *given})
    if refused:
        raise PoolSpecError(
            f"{task_id}: {refused[0]}= is not for one of the block's own tasks.",
            f"Give it to gpu_nodes, if that has it, or leave {refused[0]} out.",
        )
    own = {name: default for name, default in argument_defaults(operator).items() if name not in taken}
    return operator(task_id=task_id, **{**own, **given, **(more or {})})


def wait_for_the_past_at(begin: BaseOperator, tasks: Sequence[Any]) -> None:
    """Let the block as a whole depend on the run before where a task of it does: its machines would wait for that task.

    Ensure, scale-down and verdict come right after `begin`, so wait_for_downstream makes it wait until that run's block
    has succeeded.

    Args:
        begin: The block's first task.
        tasks: All of the block's tasks, `begin` among them.
    """
    waiting = [task for task in tasks if task.depends_on_past or task.wait_for_downstream]
    if not waiting:
        return
    begin.wait_for_past_depends_before_skipping = any(task.wait_for_past_depends_before_skipping for task in waiting)
    for task in waiting:
        task.depends_on_past = task.wait_for_downstream = False
    begin.depends_on_past = begin.wait_for_downstream = True
    begin.ignore_first_depends_on_past = True  # tasks that have run before may have come into a block that has not
