"""Running an operator in this process, as a worker would, without a scheduler: its context, and its deferrals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from airflow.sdk.exceptions import TaskDeferred
from structlog.testing import capture_logs

from airflow_gpu_provider.testing import TaskInstance, first_event, rebuilt


@dataclass
class Ti(TaskInstance):
    """A task instance of a nightly DAG's run."""

    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    dag_id: str = "nightly"


def context_of(operator: Any, **ti: Any) -> dict[str, Any]:
    """Return the context of one try of the operator's task."""
    instance = Ti(task_id=operator.task_id, **ti)
    return {"ti": instance, "task_instance": instance, "run_id": instance.run_id, "dag": None, "task": operator}


def run(operator: Any, context: dict[str, Any] | None = None, **ti: Any) -> Any:
    """Execute the operator; where it defers, run its trigger here and go on with its event."""
    context = context or context_of(operator, **ti)
    step: Callable[[], Any] = lambda: operator.execute(context)  # noqa: E731
    while True:
        try:
            return step()
        except TaskDeferred as deferral:
            event = asyncio.run(first_event(copy_of(deferral.trigger)))
            step = resumption(operator, deferral, context, event)


def resumption(operator: Any, deferral: TaskDeferred, context: dict[str, Any], event: Any) -> Callable[[], Any]:
    """Return the operator's next leg, with the event as Airflow would give it."""
    kwargs = {**(deferral.kwargs or {}), "event": event}
    return lambda: operator.resume_execution(deferral.method_name, kwargs, context)


@contextmanager
def timing_out_once(is_so: Callable[[], Any]) -> Iterator[None]:
    """Let the execution_timeout of what runs in the body be over as soon as `is_so` returns what is true.

    Airflow's timer is SIGALRM (airflow/sdk/execution_time/timeout.py), and `in_worker` sets it.
    """
    found: list[Any] = []

    def over() -> None:
        try:
            found.append(eventually(is_so, seconds=60))
        finally:
            os.kill(os.getpid(), signal.SIGALRM)

    thread = threading.Thread(target=over)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert found, f"it was over before {is_so}"


def in_worker(operator: Any, context: dict[str, Any]) -> Any:
    """Run one leg of the operator as a worker does, with Airflow's own execution_timeout.

    Airflow 3.4 tells the worker's supervisor of the timeout first; here there is none.
    """
    from airflow.sdk.execution_time import task_runner

    with patch.object(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=lambda message: None), create=True):
        return task_runner._run_execute_callable(context, operator.execute, operator)  # type: ignore[arg-type]


def copy_of(trigger: Any) -> Any:
    """Return the trigger as the triggerer builds it from its row."""
    return rebuilt(trigger.serialize())


def eventually(look: Callable[[], Any], *, seconds: float = 240.0) -> Any:
    """Return what `look` returns once it is true; the bound is below pytest-timeout's, which has no message."""
    import time

    deadline, pause = time.monotonic() + seconds, 0.05
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds} s: {look}")
        time.sleep(pause)
        # Most looks list something: what comes after seconds need not be asked for twenty times in each.
        pause = min(1.2 * pause, 0.2)
    return found


def line_of(entry: Mapping[str, Any]) -> str:
    """What structlog's capture_logs has taken, as the task's log shows it."""
    args = entry.get("positional_args")
    return str(entry["event"]) % tuple(args) if args else str(entry["event"])


def lines_of(do: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what it returned, and the lines that it has logged."""
    with capture_logs() as told:
        result = do()
    return result, [line_of(entry) for entry in told]


def meanwhile(do: Callable[[], Any]) -> threading.Thread:
    """Begin something in a thread."""
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def run_and_act(task: Any, act: Callable[[], object], *, once: Collection[str] = ("[base] begun",)) -> None:
    """Run it, and act once its log has these lines: of what happens before somebody watches, nobody knows the end."""
    with capture_logs() as told:

        def once_it_is_followed() -> None:
            eventually(lambda: {*once} <= {line_of(entry) for entry in [*told]})
            act()

        acting = meanwhile(once_it_is_followed)
        try:
            run(task)
        finally:
            acting.join()


@contextmanager
def told_to_stop(operator: Any, once: Callable[[], Any]) -> Iterator[None]:
    """Tell the operator to stop, as a worker that is evicted does: by SIGTERM, once `once` is true."""

    def tell() -> None:
        eventually(once)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    telling = meanwhile(tell)
    try:
        yield
    finally:
        telling.join()
        signal.signal(signal.SIGTERM, before)


async def watched_until(deferral: TaskDeferred, is_so: Callable[[], Any]) -> None:
    """Run the deferral's trigger until `is_so` returns what is true, and cut it off, as a triggerer that dies would."""
    watching = asyncio.create_task(first_event(copy_of(deferral.trigger)))
    await asyncio.to_thread(eventually, is_so)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def watched(look: Callable[..., Any], since: str, until: Callable[[str, Any], Any], **options: Any) -> list[Any]:
    """Return the objects that a watch tells of since a version, up to that of whose change and state `until` is true.

    What passes by itself may be over before somebody looks again; a watch leaves nothing out.
    """
    from kubernetes import watch

    told: list[Any] = []
    for event in watch.Watch().stream(look, resource_version=since, timeout_seconds=240, **options):
        told.append(event["object"])
        if until(event["type"], event["object"]):
            return told
    raise AssertionError(f"not so after 240 s: {until}")


def may_list(
    api: Any, *, user: str = "any", groups: Sequence[str] = (), resource: str = "nodes", namespace: str = ""
) -> bool:
    """Whether the API server's authorizer lets somebody list this: it hears of bindings after they were written."""
    from kubernetes import client

    attributes = {"verb": "list", "resource": resource, "namespace": namespace}
    if resource == "leases":
        attributes["group"] = "coordination.k8s.io"
    review = {"spec": {"user": user, "groups": [*groups], "resourceAttributes": attributes}}
    return bool(client.AuthorizationV1Api(api).create_subject_access_review(review).status.allowed)


def until_allowed(api: Any, **whom: Any) -> None:
    """Wait until somebody may list this: the arguments of `may_list`."""
    eventually(lambda: may_list(api, **whom))


def airflow_says(monkeypatch: Any, *, states: dict[str, dict[str, str]], unfinished_runs: int) -> None:
    """Answer what a trigger asks Airflow when its task was ended."""
    instance = "airflow.sdk.execution_time.task_runner.RuntimeTaskInstance"
    monkeypatch.setattr(f"{instance}.get_task_states", lambda **_: states)
    monkeypatch.setattr(f"{instance}.get_dr_count", lambda **_: unfinished_runs)


def until_it_reports(core: Any) -> None:
    """Wait until cluster-autoscaler has reported: in a sandbox that has just started it has not, yet."""
    reports = {"field_selector": "metadata.name=cluster-autoscaler-status"}
    eventually(lambda: core.list_namespaced_config_map("kube-system", **reports).items)


def uses(env: dict[str, str], monkeypatch: Any) -> Iterator[None]:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield
