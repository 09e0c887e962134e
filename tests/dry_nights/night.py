"""One run of a DAG: how its tasks are to end, what became of it, and what a person does to it by Airflow's own API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.datamodels.dag_run import DAGRunClearBody, DAGRunPatchBody
from airflow.api_fastapi.core_api.datamodels.task_instances import ClearTaskInstancesBody, PatchTaskInstanceBody
from airflow.api_fastapi.core_api.routes.public.dag_run import clear_dag_run, patch_dag_run
from airflow.api_fastapi.core_api.routes.public.task_instances import patch_task_instance, post_clear_task_instances
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import handle_event_submit
from airflow.triggers.base import TriggerEvent
from sqlalchemy import select

if TYPE_CHECKING:
    from tests.dry_nights.installation import Airflow

Ends = str | Sequence[str] | Mapping[int, str]
"""How each leg of a task ends, or its legs one after the other (the last one again and again), or its map indexes.

"success" (which need not be said), "failed", "skipped"; "running" and "deferred" stay until `end` or `resume`. "by
itself" runs the operator.
"""


class Night:
    """A DAG run.

    Args:
        airflow: Where it runs.
        dag_id, run_id: Its ids.
        ends: Ids of tasks, or what comes after the last dot of those, and how they end.

    Attributes:
        ends: The same, which a test may change.
        errors: What each task that has run, and did not just end as scripted, has raised; by its name in `states`.
    """

    def __init__(self, airflow: Airflow, dag_id: str, run_id: str, ends: Mapping[str, Ends]) -> None:
        self.airflow, self.dag_id, self.run_id = airflow, dag_id, run_id
        self.ends = dict(ends)
        self.errors: dict[str, BaseException | None] = {}
        self._legs: Counter[tuple[str, int]] = Counter()

    # -- what became of it -------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return str(self._run().state)

    @property
    def states(self) -> dict[str, str | None]:
        """Each task's state, by its id; with the map index in brackets for a mapped task's instances."""
        return {
            f"{ti.task_id}[{ti.map_index}]" if ti.map_index >= 0 else ti.task_id: ti.state and str(ti.state)
            for ti in self._instances()
        }

    def __getitem__(self, name: str) -> str | None:
        return self.states[name]

    @property
    def operator_names(self) -> dict[str, str | None]:
        """What Airflow shows of each task's operator, and lists task instances by."""
        return {ti.task_id: ti.operator_name for ti in self._instances()}

    def tries(self, task_id: str, map_index: int = -1) -> int:
        return int(self._instance(task_id, map_index).try_number)

    # -- how it goes on ----------------------------------------------------------------------------------------

    def next_end(self, task_id: str, map_index: int) -> str | None:
        """How the leg that begins now ends; None: as the task's kind does."""
        ends = self.ends.get(task_id, self.ends.get(task_id.rpartition(".")[2]))
        if isinstance(ends, Mapping):
            ends = ends.get(map_index)
        if ends is None or isinstance(ends, str):
            return ends
        leg = self._legs[task_id, map_index]
        self._legs[task_id, map_index] += 1
        return ends[min(leg, len(ends) - 1)]

    def go_on(self) -> Night:
        """Let the scheduler look until nothing moves any more."""
        self.airflow.go_on()
        return self

    def until(self, task_id: str, *states: str | None) -> Night:
        """Let the scheduler look until a task has one of the states."""
        for _ in range(50):
            if self[task_id] in states:
                return self
            self.airflow.look()
        raise AssertionError(f"{task_id} never is {states}: {self.states}")

    def end(self, task_id: str, how: str = "success", map_index: int = -1) -> Night:
        """Let a task end that runs."""
        self.airflow.worker.end((self.dag_id, task_id, self.run_id, map_index), how)
        return self

    def resume(self, task_id: str, map_index: int = -1) -> Night:
        """Let the trigger of a deferred task fire."""
        ti, session = self._instance(task_id, map_index), self.airflow.session
        assert ti.state == "deferred", ti.state
        handle_event_submit(TriggerEvent(None), task_instance=ti, session=session)
        session.commit()
        return self

    def rewrite(self, task_id: str, state: str | None) -> Night:
        """Write a task's state as a component does that has not heard of what else was written meanwhile."""
        self._instance(task_id).state = state
        self.airflow.session.commit()
        return self

    def kill_worker(self, task_id: str) -> Night:
        """End the process of a task that runs without a word: its executor alone notices."""
        workload, _ = self.airflow.worker.running.pop((self.dag_id, task_id, self.run_id, -1))
        self.airflow.is_over(workload)
        return self

    # -- what a person does to it ------------------------------------------------------------------------------

    def mark(self, state: str) -> Night:
        """Mark the run."""
        self._call(patch_dag_run, patch_body=DAGRunPatchBody(state=state), update_mask=None)
        return self

    def mark_task(self, task_id: str, state: str, **options: Any) -> Night:
        """Mark a task, all map indexes of it."""
        body = PatchTaskInstanceBody(new_state=state, **options)
        self._call(patch_task_instance, task_id=task_id, body=body, map_index=None, update_mask=None)
        return self

    def clear(self, *tasks: str | tuple[str, int], downstream: bool = True, only_failed: bool = False) -> Night:
        """Clear tasks, by default as Airflow's UI does: with what comes after them."""
        body = ClearTaskInstancesBody.model_validate(
            {
                "dry_run": False,
                "dag_run_id": self.run_id,
                "task_ids": list(tasks) or None,
                "include_downstream": downstream,
                "only_failed": only_failed,
            }
        )
        self._call(post_clear_task_instances, body=body, in_path=False)
        return self

    def clear_run(self, *, only_failed: bool = False) -> Night:
        self._call(clear_dag_run, body=DAGRunClearBody(dry_run=False, only_failed=only_failed))
        return self

    def _call(self, route: Any, *, in_path: bool = True, **arguments: Any) -> None:
        path = {"dag_id": self.dag_id, "dag_run_id": self.run_id} if in_path else {"dag_id": self.dag_id}
        session, dag_bag = self.airflow.session, self.airflow.dag_bag
        session.expire_all()
        route(**path, **arguments, session=session, dag_bag=dag_bag, user=None)
        session.commit()

    # -- rows --------------------------------------------------------------------------------------------------

    def _run(self) -> DagRun:
        session = self.airflow.session
        session.expire_all()
        return session.scalars(select(DagRun).filter_by(dag_id=self.dag_id, run_id=self.run_id)).one()

    def _instances(self) -> Sequence[TaskInstance]:
        session = self.airflow.session
        session.expire_all()
        found = select(TaskInstance).filter_by(dag_id=self.dag_id, run_id=self.run_id)
        return session.scalars(found.order_by(TaskInstance.task_id, TaskInstance.map_index)).all()

    def _instance(self, task_id: str, map_index: int = -1) -> TaskInstance:
        (found,) = (ti for ti in self._instances() if (ti.task_id, ti.map_index) == (task_id, map_index))
        return found
