"""A worker without processes: what its tasks would tell the Execution API reaches the API's own functions.

A task ends as its test says, or runs: by Airflow's own task runner, whose messages are answered here.
"""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.api_fastapi.execution_api.datamodels import taskinstance as payloads
from airflow.api_fastapi.execution_api.routes import task_instances as api
from airflow.api_fastapi.execution_api.routes.xcoms import set_xcom
from airflow.executors.workloads import ExecuteTask
from airflow.models.dagbag import DBDagBag
from airflow.models.xcom import XComModel
from airflow.sdk import BaseOperator, timezone
from airflow.sdk.api.datamodels._generated import TIRunContext
from airflow.sdk.execution_time import comms, task_runner
from fastapi import HTTPException, Response

STATE_UPDATES = {
    "success": payloads.TISuccessStatePayload,
    "failed": payloads.TITerminalStatePayload,
    "skipped": payloads.TITerminalStatePayload,
    "up_for_retry": payloads.TIRetryStatePayload,
    "deferred": payloads.TIDeferredStatePayload,
}
MACHINE = {"hostname": "worker", "pid": 1}
TOKEN: Any = SimpleNamespace(claims=SimpleNamespace(scope="execution"))

Key = tuple[str, str, str, int]
"""A task instance: DAG, task, run, map index."""


class Worker:
    """Begins tasks and ends them.

    Attributes:
        running: The tasks that run, and which may be tried again.
        is_busy: Whether it leaves what is queued in its queue.
    """

    def __init__(self, session: Any, dag_bag: DBDagBag) -> None:
        self.running: dict[Key, tuple[ExecuteTask, bool]] = {}
        self.is_busy = False
        self._session, self._dag_bag = session, dag_bag

    def begin(self, workload: ExecuteTask) -> TIRunContext | None:
        """Begin a task, which runs until somebody ends it; None if it was marked or cleared in the queue."""
        started = {"state": "running", "unixname": "airflow", "start_date": timezone.utcnow(), **MACHINE}
        payload = payloads.TIEnterRunningPayload.model_validate(started)
        try:
            told = api.ti_run(workload.ti.id, payload, Response(), self._session, self._dag_bag, token=TOKEN)
        except HTTPException:
            self._session.rollback()
            return None
        context = TIRunContext.model_validate_json(told.model_dump_json(exclude_unset=True))
        self._session.commit()
        self.running[workload.ti.key.primary] = workload, bool(context.should_retry)
        return context

    def end(self, key: Key, how: str) -> None:
        """End a task as its process would: "success", "failed", "skipped" or "deferred"."""
        workload, may_be_tried_again = self.running.pop(key)
        state = "up_for_retry" if how == "failed" and may_be_tried_again else how
        fields = (
            {"classpath": "a.Trigger", "next_method": "resume"}
            if state == "deferred"
            else {"end_date": timezone.utcnow()}
        )
        self._update(workload, {"state": state, **fields})

    def run(self, workload: ExecuteTask, operator: BaseOperator, context: TIRunContext) -> BaseException | None:
        """Run a task that has begun; returns what it has raised."""
        del self.running[workload.ti.key.primary]
        return _Process(self, workload, operator, context).run()

    def stopped(self) -> list[ExecuteTask]:
        """Send each task's heartbeat; returns those that were told to stop, and have."""
        stopped = []
        for key, (workload, _) in list(self.running.items()):
            try:
                api.ti_heartbeat(workload.ti.id, payloads.TIHeartbeatInfo.model_validate(MACHINE), self._session)
            except HTTPException:
                stopped.append(workload)
                del self.running[key]
        self._session.commit()
        return stopped

    def answer(self, workload: ExecuteTask, message: Any) -> Any:
        """Answer a task that runs, as its supervisor does."""
        match message:
            case comms.GetTaskBreadcrumbs():
                found = api.get_task_instance_breadcrumbs(message.dag_id, message.run_id, self._session)
                return comms.TaskBreadcrumbsResult(breadcrumbs=found.model_dump(mode="json")["breadcrumbs"])
            case comms.GetTaskStates():
                states = api.get_task_instance_states(**_query(message), session=self._session, dag_bag=self._dag_bag)
                return comms.TaskStatesResult(task_states=states.task_states)
            case comms.GetTICount():
                count = api.get_task_instance_count(**_query(message), session=self._session, dag_bag=self._dag_bag)
                return comms.TICount(count=count)
            case comms.GetXCom():
                where = {"run_id": message.run_id, "dag_ids": message.dag_id, "task_ids": message.task_id}
                query = XComModel.get_many(key=message.key, map_indexes=message.map_index, **where)
                row = self._session.scalars(query.limit(1)).first()
                return comms.XComResult(key=message.key, value=row.value if row else None)
            case comms.SetXCom():
                fields = message.model_dump(exclude={"type", "map_index"})
                set_xcom(
                    **fields, map_index=-1 if message.map_index is None else message.map_index, session=self._session
                )
            case comms.DeleteXCom():
                XComModel.clear(
                    dag_id=message.dag_id,
                    task_id=message.task_id,
                    run_id=message.run_id,
                    map_index=message.map_index,
                    session=self._session,
                )
            case comms.SkipDownstreamTasks():
                tasks = payloads.TISkippedDownstreamTasksStatePayload(tasks=message.tasks)
                api.ti_skip_downstream(workload.ti.id, tasks, self._session)
            case comms.SucceedTask() | comms.RetryTask() | comms.TaskState():
                self._update(workload, {"state": message.state, "end_date": message.end_date})
            case comms.SetRenderedFields():
                pass
            case _:
                raise NotImplementedError(message)
        self._session.commit()
        return None

    def _update(self, workload: ExecuteTask, fields: dict[str, Any]) -> None:
        payload = STATE_UPDATES[fields["state"]].model_validate(fields)
        api.ti_update_state(workload.ti.id, payload, self._session, self._dag_bag)
        self._session.commit()


def _query(message: Any) -> dict[str, Any]:
    asked: dict[str, Any] = message.model_dump(exclude={"type"})
    return asked


class _Process:
    """One try of a task that runs; for the task runner, its supervisor."""

    def __init__(self, worker: Worker, workload: ExecuteTask, operator: BaseOperator, context: TIRunContext) -> None:
        self._worker, self._workload = worker, workload
        names = {"id", "task_id", "dag_id", "run_id", "try_number", "map_index", "dag_version_id"}
        self._ti = task_runner.RuntimeTaskInstance.model_construct(
            **workload.ti.model_dump(include=names),
            task=operator,
            _ti_context_from_server=context,
            max_tries=context.max_tries,
            start_date=timezone.utcnow(),
            state="running",
        )

    def send(self, msg: Any) -> Any:
        return self._worker.answer(self._workload, msg)

    def run(self) -> BaseException | None:
        before = signal.getsignal(signal.SIGTERM)
        task_runner.SUPERVISOR_COMMS = self  # type: ignore[assignment]
        try:
            return task_runner.run(self._ti, self._ti.get_template_context(), structlog.get_logger("task"))[2]
        finally:
            del task_runner.SUPERVISOR_COMMS
            signal.signal(signal.SIGTERM, before)
