"""Run DAGs under a real scheduler, triggerer and API server, and keep what a failing test should show.

`Airflow` is what the session-wide fixture `airflow` gives to tests:

    def test_something(airflow):
        run = airflow.run_dag("my_dag", conf={"gpus": 2})
        assert run.state == "success"
        assert run.task("train").state == "success"
        assert airflow.xcom(run, "train") == {...}
        assert airflow.leftovers().nothing

The DAG files lie in tests/airflow/dags/; a DAG is triggered by its id once its file is parsed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config
from kubernetes.stream import stream

from airflow_gpu_provider.cluster.model.pod_log import POSITIONS, LogReader, positions_from_record
from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import PATIENCE, AirflowApi, AirflowApiError, RunStatus, TaskState, wait_until
from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.leftovers import Leftovers, look_for_leftovers

LOST_BY_AIRFLOW = "reported that the task instance"
CUT_SHORT = "Process did not terminate in time"


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A DAG run that has ended, with its tasks' last states."""

    status: RunStatus
    tasks: tuple[TaskState, ...]

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def states(self) -> dict[str, str | None]:
        """Task ids with their states; of a mapped task the last instance's."""
        return {task.task_id: task.state for task in self.tasks}

    def task(self, task_id: str) -> TaskState:
        (found,) = (task for task in self.tasks if task.task_id == task_id)
        return found


class Airflow:
    """An AirflowHome with the verbs of a test. `home` starts, kills and restarts the components.

    `sandbox` is what its tasks talk to: its faults are cleared after each test.
    """

    def __init__(self, home: AirflowHome, sandbox: Sandbox) -> None:
        self.home = home
        self.sandbox = sandbox
        self._started: list[RunStatus] = []

    @property
    def api(self) -> AirflowApi:
        return self.home.api

    def begin_test(self) -> None:
        """Forget the runs that earlier tests started, and start again what of Airflow has ended by itself since.

        A scheduler ends where a DAG is deleted while it looks at a run of it (apache/airflow#25117, and still 3.3.2),
        and an installation starts it again.
        """
        self._started.clear()
        self.home.revive(lambda _, account: warnings.warn(account, stacklevel=2))

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> RunStatus:
        """Start a run, once the DAG's file has been parsed, and return at once."""
        self.api.wait_for_dag(dag_id)
        run = self.api.trigger(dag_id, conf=conf)
        self._started.append(run)
        return run

    def remember(self, *runs: RunStatus) -> None:
        """Have a failing test show runs that were started before it."""
        self._started += runs

    def finish(self, run: RunStatus, *, timeout: float = PATIENCE) -> FinishedRun:
        """Wait until the run has ended; `timeout` in seconds."""
        status = self.api.wait_for_run(run.dag_id, run.run_id, timeout=timeout)
        return FinishedRun(status=status, tasks=tuple(self.api.tasks(run.dag_id, run.run_id)))

    def end(self, runs: Iterable[RunStatus]) -> None:
        """Mark the runs failed that no test has ended, as where only some tests run, and wait until all have ended."""
        runs = tuple(runs)
        for run in runs:
            if not self.api.run(run.dag_id, run.run_id).ended:
                self.api.mark_run(run.dag_id, run.run_id, "failed")
        for run in runs:
            self.finish(run)

    def run_dag(self, dag_id: str, conf: Mapping[str, Any] | None = None, *, first_tries: bool = False) -> FinishedRun:
        """Start a run and wait until it has ended; up to two others where Airflow has lost a task of it.

        `first_tries`: also where a retry has made up for that, for a test of what each task does in its first try.
        """
        for _ in range(3):
            run = self.finish(self.trigger(dag_id, conf))
            if run.state == "success" and not first_tries:
                break
            if not any(self.lost_by_airflow(run, task.task_id) for task in run.tasks):
                break
        return run

    def until_watched(self, run: RunStatus) -> None:
        """Wait until the training runs and its trigger watches it: one that has not begun is told of nothing."""
        self.api.wait_for_task(run.dag_id, run.run_id, "train", states=frozenset({"deferred"}))
        wait_until(lambda: "started on node" in self.log(run, "train"), what=f"{run.dag_id}'s training to be watched")

    def log(self, run: FinishedRun | RunStatus, task_id: str, *, try_number: int = 1) -> str:
        """What the task's try logged, one line per message."""
        status = run.status if isinstance(run, FinishedRun) else run
        lines = self.api.log(status.dag_id, status.run_id, task_id, try_number=try_number)
        return "\n".join(line.event for line in lines)

    def xcom(self, run: FinishedRun, task_id: str, *, key: str = "return_value") -> Any:
        return self.api.xcom(run.status.dag_id, run.status.run_id, task_id, key=key)

    def leftovers(self) -> Leftovers:
        """Nodes, machines, desired sizes and GPU pods that are there now."""
        return look_for_leftovers(self.sandbox)

    def run_in(self, pod: str, *command: str) -> None:
        """Run a command in the pod of that name, as `kubectl exec` does."""
        # A client of its own: stream() makes a client open websockets only, for as long as it runs.
        with config.new_client_from_config(str(self.sandbox.kubeconfig)) as api:
            connect = client.CoreV1Api(api).connect_get_namespaced_pod_exec
            stream(connect, pod, "default", container="base", command=list(command), stdout=True, stderr=True)

    def saved_log(self, pod: str) -> list[str]:
        """The lines of the pod in "default" that no other triggerer repeats, as the place after them is recorded."""
        with config.new_client_from_config(str(self.sandbox.kubeconfig)) as api:
            core = client.CoreV1Api(api)
            annotations = core.read_namespaced_pod(pod, "default").metadata.annotations or {}
            positions = positions_from_record(json.loads(annotations.get(POSITIONS, "{}")))
            options = {"container": "base", "timestamps": True, "_preload_content": False}
            printed = core.read_namespaced_pod_log(pod, "default", **options).data
        if "base" not in positions:
            return []
        lines = printed.splitlines()
        reader = LogReader()
        for number, line in enumerate(lines):
            reader.take(line)
            if reader.position.newest > positions["base"].newest:
                lines = lines[:number]
                break
        return [line.decode().partition(" ")[2] for line in lines]

    def lost_by_airflow(self, run: FinishedRun | RunStatus, task_id: str) -> bool:
        """Whether Airflow 3.3 failed a try of this task by mistake (apache/airflow#72716, #71580).

        It happens to tasks that come back within seconds of deferring. The task's retries cover it;
        a test of a task without any has to tell it from a failure of its own.
        """
        run_id = run.status.run_id if isinstance(run, FinishedRun) else run.run_id
        lines = self.home.log_file("scheduler").read_text(errors="replace").splitlines()
        return any(LOST_BY_AIRFLOW in line and run_id in line and f".{task_id} " in line for line in lines)

    @property
    def cut_short(self) -> int:
        """How many tasks that were told to stop Airflow has killed, five seconds later: a busy machine takes longer."""
        return self.home.log_file("scheduler").read_text(errors="replace").count(CUT_SHORT)

    def account(self) -> str:
        """Every task's state and log, in the runs started since the test began: what a failing test shows."""
        parts: list[str] = []
        for run in self._started:
            try:
                parts += self._account_of(run)
            except AirflowApiError as error:
                parts.append(f"{run.dag_id} {run.run_id}: {error}")
        return "\n".join(parts)

    def _account_of(self, run: RunStatus) -> list[str]:
        parts = [f"=== {run.dag_id} {run.run_id}: {self.api.run(run.dag_id, run.run_id).state}"]
        for task in self.api.tasks(run.dag_id, run.run_id):
            for try_number in range(1, task.try_number + 1):
                parts.append(f"--- {task.task_id} (try {try_number} of {task.try_number}): {task.state}")
                try:
                    lines = self.api.log(
                        run.dag_id, run.run_id, task.task_id, try_number=try_number, map_index=task.map_index
                    )
                except AirflowApiError as error:  # there is no record of a try that Airflow has lost itself
                    parts.append(str(error))
                else:
                    parts += [f"{line.at:%H:%M:%S.%f} {line.event}" for line in lines if line.at]
        return parts
