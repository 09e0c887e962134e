"""What Airflow says about the task that a trigger waits for, and about its DAG run.

A trigger's on_kill also runs when another triggerer takes over a healthy wait (a triggerer that had stalled and
recovers), so nothing is removed before the task's state is checked.

It does not use asgiref's sync_to_async, which loses the message of a cancellation: Airflow calls on_kill only if it
gets its own message back (TriggerRunner.run_trigger: `e.args[0] == _USER_ACTION_CANCEL_MSG`, airflow 3.3).
"""

from __future__ import annotations

from airflow.triggers.base import BaseTrigger

from airflow_gpu_provider.cluster.threads import in_thread


async def is_still_deferred(trigger: BaseTrigger) -> bool:
    """Return True if the trigger's task still waits, so that what the trigger watches must be left alone."""
    from airflow.utils.state import TaskInstanceState

    return await _state(trigger) == TaskInstanceState.DEFERRED


async def runs_again(trigger: BaseTrigger) -> bool:
    """Return True if a worker runs the trigger's task, or will: resumed by another triggerer's event, or cleared."""
    return await _state(trigger) in _on_their_way()


async def may_need_it(trigger: BaseTrigger) -> bool:
    """Return True if what the trigger's task requested may be needed: it waits, continues, or has succeeded."""
    from airflow.utils.state import TaskInstanceState

    state = await _state(trigger)
    return state in (TaskInstanceState.DEFERRED, *_on_their_way(), TaskInstanceState.SUCCESS)


def _on_their_way() -> tuple[str, ...]:
    from airflow.utils.state import TaskInstanceState

    return (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


async def _state(trigger: BaseTrigger) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    ti = trigger.task_instance
    if ti is None:
        return None
    map_index = -1 if ti.map_index is None else ti.map_index
    states = await in_thread(
        RuntimeTaskInstance.get_task_states,
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=map_index,
    )
    name = f"{ti.task_id}_{map_index}" if map_index >= 0 else ti.task_id
    state: str | None = states.get(ti.run_id, {}).get(name)
    return state


async def is_run_over(trigger: BaseTrigger) -> bool:
    """Return True if the trigger's DAG run has ended or was deleted: tasks that have not run by now never will.

    A run that a user marks failed continues until its teardowns are done; one that dagrun_timeout ends does not.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.utils.state import State

    ti = trigger.task_instance
    if ti is None:
        return False
    unfinished = await in_thread(
        RuntimeTaskInstance.get_dr_count,
        dag_id=ti.dag_id,
        run_ids=[ti.run_id],
        states=[str(state) for state in State.unfinished_dr_states],
    )
    return unfinished == 0
