"""BlockVerdictOperator: the last task of a `gpu_nodes` block, which gives a DAG run the colour that it should have.

A DAG run's state comes from its leaves. A teardown that succeeds would turn a failed training green; and a run that a
person marks failed has its pending tasks skipped, plain leaves among them, runs its teardowns, and ends green
(airflow/api/common/mark_tasks.py, 3.3.2). So the leaf is a teardown too, and looks at what became of the block's tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_gpu_provider.errors import BlockFailed

if TYPE_CHECKING:
    from airflow.sdk import Context

_FAILED = ("failed", "upstream_failed")


class BlockVerdictOperator(BaseOperator):
    """Fail when the block's work has failed.

    Args:
        block_tasks: Ids of the block's tasks that the DAG's author wrote, and of its ScaleDownSensor.
        deciding_tasks: Those of them that nothing of the author's comes after, and the ScaleDownSensor.

    Raises:
        BlockFailed: The message names the tasks.
    """

    ui_color = "#e6e6e6"

    def __init__(self, *, block_tasks: Sequence[str], deciding_tasks: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "retries": 0})
        self.block_tasks = list(block_tasks)
        self.deciding_tasks = list(deciding_tasks)

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=self.block_tasks, run_ids=[ti.run_id])
        states: dict[str, str | None] = found.get(ti.run_id, {})
        failed = failed_tasks(states, deciding=self.deciding_tasks)
        if failed:
            raise BlockFailed(
                f"{', '.join(failed)} failed.", "See their logs; a task that is cleared gets its nodes again."
            )
        self.log.info("The block's tasks: %s", ", ".join(f"{name} {state}" for name, state in sorted(states.items())))


def failed_tasks(states: Mapping[str, str | None], *, deciding: Sequence[str]) -> list[str]:
    """Return the tasks that make the block a failure; none where it is none.

    As with a DAG run, leaves decide. A leaf that was skipped though another task has failed was not skipped by the
    DAG's own logic but by a person who marked the run failed.

    Args:
        states: Task ids, those of mapped tasks' instances with "_<map index>" behind, and their states.
        deciding: Ids of the tasks that decide.
    """
    failed = sorted(name for name, state in states.items() if state in _FAILED)
    ends = {name: state for name, state in states.items() if re.sub(r"_\d+$", "", name) in deciding or name in deciding}
    if any(state in (*_FAILED, "skipped") for state in ends.values()):
        return failed
    return []
