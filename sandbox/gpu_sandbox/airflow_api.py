"""A small client for the part of Airflow's REST API that the demonstration and the tests need.

Every call raises AirflowApiError, with the server's message, if the answer is not a success.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import httpx

RUN_ENDED = frozenset({"success", "failed"})
TASK_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

RunState = Literal["queued", "success", "failed"]


LOCKED = ("Database error", "Database is locked")
LOCKED_TRIES = 10
"""How often to repeat a call that SQLite refused because its single lock was held; Airflow has rolled it back."""


PATIENCE = 600.0
"""Default seconds: a wait that takes this long is in vain, however busy the machine."""


class AirflowApiError(Exception):
    """Airflow's API refused, or the state was not reached in time."""


class AirflowApiSilent(AirflowApiError):
    """The API server did not answer within the client's timeout."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """One task instance as the API shows it; times are None until they are known."""

    id: str
    task_id: str
    state: str | None  # None: not scheduled yet
    map_index: int
    region_index: int | None  # of a task in a loop: its iteration, from 0
    try_number: int
    queued_at: datetime | None
    start_date: datetime | None
    end_date: datetime | None
    pid: int | None  # of the process that runs, or last ran, the operator's code

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TaskState:
        return cls(
            id=body["id"],
            task_id=body["task_id"],
            state=body["state"],
            map_index=body["map_index"],
            region_index=body.get("region_index"),
            try_number=body["try_number"],
            queued_at=_time(body["queued_when"]),
            start_date=_time(body["start_date"]),
            end_date=_time(body["end_date"]),
            pid=body["pid"],
        )


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One DAG run as the API shows it."""

    dag_id: str
    run_id: str
    state: str
    queued_at: datetime | None
    start_date: datetime | None
    end_date: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RunStatus:
        return cls(
            dag_id=body["dag_id"],
            run_id=body["dag_run_id"],
            state=body["state"],
            queued_at=_time(body["queued_at"]),
            start_date=_time(body["start_date"]),
            end_date=_time(body["end_date"]),
        )


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of a task's log; groups and lines of plain text have no time."""

    at: datetime | None
    level: str
    event: str


class AirflowApi:
    """Calls one Airflow API server that runs the simple auth manager with everybody as admin."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def health(self) -> dict[str, str | None]:
        """The status of each component by its name ("healthy", "unhealthy"; None: never seen)."""
        return {name: part["status"] for name, part in self._call("GET", "/monitor/health").items() if part}

    def wake_execution_api(self) -> None:
        """Call the execution API: it is built at its first request, which no task should wait for."""
        self._send("GET", "/execution/health")

    def import_errors(self) -> dict[str, str]:
        """The DAG files that could not be read, with Python's error."""
        errors = self._call("GET", "/importErrors")["import_errors"]
        return {each["filename"]: each["stack_trace"] for each in errors}

    def has_dag(self, dag_id: str) -> bool:
        try:
            self._call("GET", f"/dags/{quote(dag_id)}")
        except AirflowApiError as error:
            if error.args[-1] == httpx.codes.NOT_FOUND:
                return False
            raise
        return True

    def is_stale(self, dag_id: str) -> bool:
        """Return True if the DAG's file is gone, or no longer defines it."""
        return bool(self._call("GET", f"/dags/{quote(dag_id)}")["is_stale"])

    def wait_for_dag(self, dag_id: str, *, timeout: float = PATIENCE) -> None:
        """Return as soon as the DAG can be triggered; raises with the import error if there is one."""

        def there() -> bool:
            if self.has_dag(dag_id):
                return True
            if broken := self.import_errors():
                raise AirflowApiError("\n".join(f"{file}:\n{text}" for file, text in broken.items()))
            return False

        wait_until(there, timeout=timeout, what=f"the DAG {dag_id} to be parsed")

    def trigger(
        self,
        dag_id: str,
        *,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        due: datetime | None = None,
    ) -> RunStatus:
        """Start a DAG run now, with `conf` as its configuration; Airflow names it if no `run_id` is given.

        logical_date: the date that the run is for; runs with one have an order.
        due: when it was to run, in the past; by default now.
        """
        at = logical_date.isoformat() if logical_date else None
        body = {"logical_date": at, "conf": dict(conf or {}), "dag_run_id": run_id}
        if due is not None:
            body["run_after"] = due.isoformat()
        return RunStatus.from_json(self._call("POST", f"/dags/{quote(dag_id)}/dagRuns", json=body))

    def runs(self, dag_id: str) -> list[RunStatus]:
        """All runs of the DAG that Airflow knows, in the order of their ids."""
        found = self._call("GET", f"/dags/{quote(dag_id)}/dagRuns", params={"limit": 100})["dag_runs"]
        return sorted(map(RunStatus.from_json, found), key=lambda run: run.run_id)

    def run(self, dag_id: str, run_id: str) -> RunStatus:
        return RunStatus.from_json(self._call("GET", _run_path(dag_id, run_id)))

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float = PATIENCE) -> RunStatus:
        """Wait until the run has ended, in whatever state; `timeout` in seconds."""
        wait_until(
            lambda: self.run(dag_id, run_id).ended,
            timeout=timeout,
            what=f"the run {run_id} of {dag_id} to end",
        )
        return self.run(dag_id, run_id)

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The run's task instances, in the order in which they were queued."""
        body = self._call("GET", f"{_run_path(dag_id, run_id)}/taskInstances", params={"limit": 100})
        tasks = [TaskState.from_json(each) for each in body["task_instances"]]
        return sorted(tasks, key=lambda task: (task.queued_at is None, task.queued_at or datetime.min))

    def task(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> TaskState:
        return TaskState.from_json(self._call("GET", _task_path(dag_id, run_id, task_id, map_index)))

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, *, states: frozenset[str] = TASK_ENDED, timeout: float = PATIENCE
    ) -> TaskState:
        """Wait until the task is in one of `states` (default: any final one); `timeout` in seconds."""
        wait_until(
            lambda: self.task(dag_id, run_id, task_id).state in states,
            timeout=timeout,
            what=f"the task {task_id} to be {' or '.join(sorted(states))}",
        )
        return self.task(dag_id, run_id, task_id)

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1) -> list[LogLine]:
        """Everything that the task's try has logged so far, including its trigger's lines."""
        body = self._call(
            "GET",
            f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}",
            params={"map_index": map_index, "full_content": True},
            headers={"Accept": "application/json"},
        )
        return [_log_line(each) for each in body["content"]]

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> Any:
        """The value that the task left under `key`; AirflowApiError if there is none."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        return self._call("GET", path, params={"map_index": map_index, "deserialize": True})["value"]

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """The operator's extra links by name."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/links"
        links: dict[str, str | None] = self._call("GET", path)["extra_links"]
        return links

    def mark_run(self, dag_id: str, run_id: str, state: RunState) -> None:
        """What the UI's "Mark run as ..." does."""
        self._insist("PATCH", _run_path(dag_id, run_id), json={"state": state})

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """What the UI's "Clear run" does: all its tasks run again."""
        self._call("POST", f"{_run_path(dag_id, run_id)}/clear", json={"dry_run": False, "only_failed": False})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """What the UI's "Delete run" does; Airflow refuses it while the run is running."""
        self._call("DELETE", _run_path(dag_id, run_id))

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: Literal["success", "failed", "skipped"]) -> None:
        """What the UI's "Mark task as ..." does."""
        self._insist("PATCH", _task_path(dag_id, run_id, task_id, -1), json={"new_state": state})

    def clear_task(
        self, dag_id: str, run_id: str, task_id: str, *, downstream: bool = True, only_failed: bool = False
    ) -> None:
        """What the UI's "Clear task" does: the task, and by default all below it, run again."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "include_downstream": downstream,
            "only_failed": only_failed,
            "reset_dag_runs": True,
        }
        self._call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def clear_instance(self, dag_id: str, run_id: str, instance: str) -> None:
        """Clear one task instance, by its id: of a task in a loop, one iteration. Airflow 3.3 does not take ids."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_instance_ids": [instance], "only_failed": False}
        self._call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def delete_dag(self, dag_id: str) -> None:
        """What the UI's "Delete DAG" does: all its records are deleted; its file may bring it back."""
        self._call("DELETE", f"/dags/{quote(dag_id)}")

    def pause(self, dag_id: str, paused: bool) -> None:
        """What the toggle next to the DAG's name does."""
        self._call("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": paused})

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Choose an option of a task that waits for a person, as under Browse > Required Actions."""
        path = f"{_task_path(dag_id, run_id, task_id, -1)}/-1/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": [option], "params_input": {}})

    def add_asset_event(self, uri: str, partition: str | None = None) -> None:
        """What the UI's "Create Asset Event" does; `partition` is the key of the data that changed."""
        assets = self._call("GET", "/assets", params={"limit": 100})["assets"]
        (asset,) = (each for each in assets if each["uri"] == uri)
        self._call("POST", "/assets/events", json={"asset_id": asset["id"], "partition_key": partition})

    def asset_events(self, name: str, *, partition: str | None = None) -> list[dict[str, Any]]:
        """The metadata of an asset's events, the oldest first; of all partitions or one."""
        found = self._call("GET", "/assets/events", params={"order_by": "timestamp"})["asset_events"]
        return [each["extra"] for each in found if each["name"] == name and partition in (None, each["partition_key"])]

    def set_variable(self, key: str, value: str) -> None:
        self._call("POST", "/variables", json={"key": key, "value": value})

    def add_connection(self, conn_id: str, fields: Mapping[str, Any]) -> None:
        """`fields` as in an environment's AIRFLOW_CONN_*, as JSON."""
        extra = fields.get("extra", {})
        texts = {"extra": extra if isinstance(extra, str) else json.dumps(extra)}
        self._call("POST", "/connections", json={"connection_id": conn_id, **fields, **texts})

    def delete_connection(self, conn_id: str) -> None:
        self._insist("DELETE", f"/connections/{quote(conn_id)}")

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        if "Authorization" not in self._http.headers and path != "/monitor/health":
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
        return self._send(method, f"/api/v2{path}", **arguments)

    def _insist(self, method: str, path: str, **arguments: Any) -> None:
        """Call it, and once more if no answer came: for idempotent calls."""
        try:
            self._call(method, path, **arguments)
        except AirflowApiSilent:
            self._call(method, path, **arguments)

    def _token(self) -> str:
        token: str = self._send("GET", "/auth/token")["access_token"]
        return token

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        for _ in range(LOCKED_TRIES):
            try:
                return self._send_once(method, path, **arguments)
            except AirflowApiError as error:
                if not any(words in error.args[0] for words in LOCKED):
                    raise
                time.sleep(1)
        return self._send_once(method, path, **arguments)

    def _send_once(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.TimeoutException as error:
            raise AirflowApiSilent(f"{method} {path}: {error!r}") from error
        except httpx.TransportError as error:
            raise AirflowApiError(f"{method} {path}: {error!r}") from error
        if response.is_error:
            raise AirflowApiError(f"{method} {path}: {response.text}", response.status_code)
        return response.json() if response.content else None


def wait_until(condition: Callable[[], bool], *, timeout: float = PATIENCE, what: str, every: float = 0.3) -> None:
    """Check every `every` seconds until `condition` holds; AirflowApiError after `timeout` seconds.

    A request that the API server leaves unanswered, as on a busy machine, is also repeated.
    """
    deadline = time.monotonic() + timeout
    while not _holds(condition):
        if time.monotonic() > deadline:
            raise AirflowApiError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(every)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (AirflowApiSilent, ConnectionError):
        return False


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _task_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _log_line(line: str | Mapping[str, Any]) -> LogLine:
    if isinstance(line, str):
        return LogLine(at=None, level="info", event=line)
    text = "\n".join([str(line["event"]), *errors_in(line)])
    return LogLine(at=_time(line.get("timestamp")), level=str(line.get("level", "info")), event=text)


def errors_in(record: Mapping[str, Any]) -> list[str]:
    """The exceptions that a line of Airflow's structured log carries, one line each."""
    details = record.get("error_detail") or []
    return [f"{each.get('exc_type')}: {each.get('exc_value')}" for each in details if isinstance(each, Mapping)]
