"""An Airflow of which only the scheduler is left: it looks when a test says so, and its tasks end as the test says.

A look is Airflow's own `_do_scheduling`: it starts runs, decides which tasks may begin and what became of a run, and
queues tasks within slots and limits. Nothing moves in between, and no time passes but by `pass_time`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.api.common.delete_dag import delete_dag
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.executor_utils import ExecutorName
from airflow.executors.workloads import ExecuteTask
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.backfill import BackfillDagRun, ReprocessBehavior, _create_backfill
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator, timezone
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, update

from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.training import TrainingOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from tests.dry_nights.night import Ends, Night
from tests.dry_nights.worker import Worker

BUNDLE = "dry"
MOST_LOOKS = 100
ENDED = ("success", "failed")


class Work(BaseOperator):
    """A task of a DAG's author. It does nothing: its test says how it ends. `rate` is there to be mapped."""

    def __init__(self, *, rate: str = "", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rate = rate


SCRIPTED = (Work, TrainingOperator, EnsureGpuPoolOperator, InstallDevicePluginOperator, ScaleDownSensor)
"""What does not run here, but ends as its test says; all other operators run."""


class Executor(BaseExecutor):
    """Keeps what the scheduler has queued, for the worker."""

    name = ExecutorName(f"{__name__}.Executor", alias="dry")

    def sync(self) -> None:
        pass

    def send_callback(self, request: Any) -> None:
        pass


class Scheduler(SchedulerJobRunner):
    """Leaves out the parts of a look for which there is nothing to do: a quarter of its time."""

    def _start_queued_dagruns(self, session: Any) -> None:
        if session.scalar(select(DagRun.id).where(DagRun.state == "queued").limit(1)):
            super()._start_queued_dagruns(session)

    def _critical_section_enqueue_task_instances(self, session: Any) -> int:
        if session.scalar(select(TaskInstance.id).where(TaskInstance.state == "scheduled").limit(1)):
            return super()._critical_section_enqueue_task_instances(session)
        return 0


class Airflow:
    """The installation; its nights are what it runs.

    Attributes:
        session: The database's.
        executor: Its `parallelism` is how many tasks may run at once.
        worker: What runs them.
        dag_bag: The DAGs as they are stored.
        dags: The DAGs as they were parsed.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.executor = Executor(parallelism=32)
        job = Job()
        self._scheduler = Scheduler(job=job, executors=[self.executor])
        session.add_all([job, DagBundleModel(name=BUNDLE)])
        session.commit()
        self.dag_bag = self._scheduler.scheduler_dag_bag
        self.worker = Worker(session, self.dag_bag)
        self.dags: dict[str, DAG] = {}
        self._nights: dict[tuple[str, str], Night] = {}

    def parse(self, dag: DAG) -> None:
        """Take a DAG file's content, as the DAG processor does: the first time, and when it has changed."""
        self.dags[dag.dag_id] = dag
        dag.relative_fileloc = f"{dag.dag_id}.py"
        stored = LazyDeserializedDAG(data=DagSerialization.to_dict(dag))
        SerializedDAG.bulk_write_to_db(BUNDLE, None, [stored], session=self.session)
        SerializedDagModel.write_dag(stored, bundle_name=BUNDLE, session=self.session)
        self._set(dag, is_paused=False, is_stale=False)

    def begin(self, dag: DAG, *, on: datetime | None = None, **ends: Ends) -> Night:
        """Trigger a run of the DAG, for a day or without one. `ends`: see Night."""
        if dag.dag_id not in self.dags:
            self.parse(dag)
        stored = self.dag_bag.get_latest_version_of_dag(dag.dag_id, session=self.session)
        assert stored
        run = stored.create_dagrun(
            run_id=f"night-{len(self._nights) + 1}",
            logical_date=timezone.coerce_datetime(on),
            run_after=timezone.utcnow() - timedelta(minutes=1),  # to the second: SQLite's now
            run_type=DagRunType.SCHEDULED if on else DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state="queued",
            session=self.session,
        )
        self.session.commit()
        return self._night(run, ends)

    def backfill(self, dag: DAG, first: datetime, last: datetime, *, max_active_runs: int, **ends: Ends) -> list[Night]:
        """Begin a backfill of the days, as `airflow backfill create` does."""
        self.parse(dag)
        backfill = _create_backfill(
            dag_id=dag.dag_id,
            from_date=timezone.coerce_datetime(first),
            to_date=timezone.coerce_datetime(last),
            max_active_runs=max_active_runs,
            reverse=False,
            dag_run_conf=None,
            triggering_user_name="somebody",
            reprocess_behavior=ReprocessBehavior.NONE,
        )
        of_backfill = select(DagRun).join(BackfillDagRun, BackfillDagRun.dag_run_id == DagRun.id)
        runs = self.session.scalars(of_backfill.where(BackfillDagRun.backfill_id == backfill.id)).all()
        return [self._night(run, ends) for run in runs]

    def _night(self, run: DagRun, ends: Mapping[str, Ends]) -> Night:
        night = Night(self, run.dag_id, run.run_id, ends)
        self._nights[run.dag_id, run.run_id] = night
        return night

    def go_on(self) -> None:
        """Look until nothing moves any more."""
        states = self._states()
        for _ in range(MOST_LOOKS):
            self.look()
            before, states = states, self._states()
            if states == before or all(state in ENDED for _, state in states[0]):
                return
        raise AssertionError(f"it goes on for ever: {self._states()}")

    def look(self) -> None:
        """Have the scheduler look once; the tasks that it queues begin, and most of them end."""
        for workload in self.worker.stopped():
            self.is_over(workload)
        self.executor.running = {workload.ti.key for workload, _ in self.worker.running.values()}
        self._scheduler._do_scheduling(self.session)
        self.session.commit()
        if self.worker.is_busy:
            return
        for key, workload in list(self.executor.queued_tasks.items()):
            del self.executor.queued_tasks[key]
            self._take(workload)

    def _take(self, workload: ExecuteTask) -> None:
        context = self.worker.begin(workload)
        if context is None:
            return
        ti = workload.ti
        night, operator = self._nights[ti.dag_id, ti.run_id], self.dags[ti.dag_id].get_task(ti.task_id)
        how = night.next_end(ti.task_id, ti.map_index)
        if how == "by itself" or (how is None and not is_scripted(operator)):
            name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
            night.errors[name] = self.worker.run(workload, operator, context)
        elif how != "running":
            self.worker.end(ti.key.primary, how or "success")

    def is_over(self, workload: ExecuteTask) -> None:
        """Tell the scheduler that a task's process is over, whatever it has told the API."""
        self.executor.fail(workload.ti.key)
        self._scheduler._process_executor_events(self.executor, self.session)
        self.session.commit()

    def pass_time(self, by: timedelta) -> None:
        """Have everything that is in the database seem to have happened earlier."""
        self.session.expire_all()
        for row in [*self.session.scalars(select(DagRun)), *self.session.scalars(select(TaskInstance))]:
            for name in ("start_date", "end_date"):
                when = getattr(row, name)
                setattr(row, name, when and when - by)
        self.session.commit()

    def pause(self, dag: DAG, paused: bool = True) -> None:
        self._set(dag, is_paused=paused)

    def lose_file(self, dag: DAG) -> None:
        """Have the DAG processor find that the DAG's file is gone; `parse` brings it back."""
        self._set(dag, is_stale=True)

    def delete(self, dag: DAG) -> None:
        """Delete the DAG and all its runs, as the UI does."""
        delete_dag(dag.dag_id, session=self.session)
        self.session.commit()

    def slots(self, pool: str, count: int) -> None:
        """Make a slot pool, or change its size."""
        Pool.create_or_update_pool(pool, slots=count, description="", include_deferred=False, session=self.session)
        self.session.commit()

    def _set(self, dag: DAG, **fields: Any) -> None:
        self.session.execute(update(DagModel).where(DagModel.dag_id == dag.dag_id).values(**fields))
        self.session.commit()

    def _states(self) -> tuple[list[Any], list[Any]]:
        self.session.expire_all()
        runs = self.session.execute(select(DagRun.id, DagRun.state)).all()
        tasks = self.session.execute(select(TaskInstance.id, TaskInstance.state, TaskInstance.try_number)).all()
        return list(runs), list(tasks)


def is_scripted(operator: Any) -> bool:
    """Return True for a task that does not run here."""
    if isinstance(operator, MappedOperator):
        return issubclass(operator.operator_class, SCRIPTED)
    return isinstance(operator, SCRIPTED)
