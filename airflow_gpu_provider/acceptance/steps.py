"""The steps of an acceptance, in order: each runs the package's own operators on the account, and says what it saw.

A failed step is reported, and the rest that makes sense is run; what was created is deleted at the end in any case,
and then the cloud's lists are read for leftovers.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow.sdk.exceptions import TaskDeferred
from kubernetes.utils.quantity import parse_quantity

from airflow_gpu_provider.acceptance import gpu_program
from airflow_gpu_provider.acceptance.pools import with_impossible_first
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.clouds.remains import Listed, remains
from airflow_gpu_provider.cluster.api.rest import call, list_items
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import GpuError, TaskKilled
from airflow_gpu_provider.operators.delete import DeleteGpuPoolOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.reports.doctor import examine
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.tasks.run_identity import run_key
from airflow_gpu_provider.testing import Done, Tasks, waiting_process

INSTALLATION = "airflow-gpu-accept"
"""Whose demand it is: no DAG's of the Airflow that the command runs in, which knows nothing of these runs."""

DAG_ID = "airflow_gpu_accept"

NIGHTS = 3
"""How many of the steps bring a node."""

_HOLD_SECONDS = 30  # for its wait to be killed meanwhile, on a busy machine too
_RUNNING_WITHIN = 20 * 60.0
_GONE_WITHIN = 15 * 60.0
_LOOK_SECONDS = 2.0
_OF_A_VOLUME = 0.8  # what filesystem and system leave of it at least

Outcome = Literal["passed", "failed", "skipped"]


class NotAsExpected(Exception):
    """What a step saw is not what is promised."""


@dataclass
class StepReport:
    """How one step went.

    Attributes:
        outcome: "skipped" where a step that it builds on has failed.
        lines: What was seen.
        phases: Times to each phase of its tasks, "task: phase" and seconds.
    """

    name: str
    outcome: Outcome = "skipped"
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    phases: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Record:
    """What an acceptance has seen: its steps, on what they ran, in words for people, and what is left at the end."""

    steps: list[StepReport] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    lists: list[Listed] = field(default_factory=list)
    is_stopped: bool = False

    @property
    def has_passed(self) -> bool:
        return not self.is_stopped and bool(self.steps) and all(step.outcome == "passed" for step in self.steps)


class Acceptance:
    """One acceptance of one pool, as `pools.accepted` returns it; `echo` takes a line for who watches."""

    def __init__(self, pool: GpuPool, *, image: str, pod_namespace: str, echo: Report) -> None:
        self.pool = pool
        self.fallback = with_impossible_first(pool)
        self.record = Record()
        self._image = image
        self._namespace = pod_namespace
        self._echo = echo
        self._tasks = Tasks("none", DAG_ID)
        self._is_ending = False
        self._open_nights: dict[str, GpuPool] = {}

    def run(self) -> None:
        """Run all steps. The last two run whatever happened before them."""
        try:
            if self._step("doctor", self._doctor):
                self._nights()
            self._is_ending = True  # from here on no signal raises anything
        except TaskKilled:
            self._echo("The steps end here.")
        finally:
            self._is_ending = True
            self._step("delete", self._delete)
            self._step("nothing is left", self._nothing_is_left)

    def stop(self) -> None:
        """End the step that is under way, from a signal's handler; the end runs on, and nothing stops that."""
        if self._is_ending or self.record.is_stopped:
            self._echo("Cleaning up; this ends by itself.")
            return
        self.record.is_stopped = True
        self._echo("Received a signal: cleaning up.")
        self._tasks.stop(TaskKilled("The acceptance received a signal.", "What it made is removed all the same."))

    def _nights(self) -> None:
        second = "a second night, whose wait is killed"
        if self._step("a night from zero", self._first_night):
            self._step(second, self._second_night)
        else:
            self.record.steps.append(StepReport(second, lines=["The first night has failed."]))
        self._step("a first candidate that does not exist", self._fallback_night)

    def _step(self, name: str, run: Callable[[StepReport], None]) -> bool:
        """Run one step, and return whether it passed. No error of it leaves here."""
        report = StepReport(name)
        self.record.steps.append(report)
        if self.record.is_stopped and not self._is_ending:
            report.lines.append("Received a signal.")
            return False
        self._echo(f"{name} ...")
        started = time.monotonic()
        try:
            run(report)
            report.outcome = "passed"
        except (Exception, TaskKilled) as error:  # noqa: BLE001 - whatever it was, the report tells it
            report.outcome = "failed"
            report.lines.append(str(error) if isinstance(error, NotAsExpected) else f"{type(error).__name__}: {error}")
        report.seconds = time.monotonic() - started
        self._echo(f"{name}: {report.outcome} after {report.seconds:.0f} s. {report.lines[-1] if report.lines else ''}")
        return report.outcome == "passed"

    def _doctor(self, report: StepReport) -> None:
        findings = examine(self.pool, functools.partial(self._opened, self.pool), pod_namespace=self._namespace)
        for each in findings:
            if each.result != "ok":
                report.lines.append(f"{each.result}: {each.check}: {each.message} {each.fix}".strip())
        problems = [each.check for each in findings if each.result == "problem"]
        if problems:
            raise NotAsExpected(f"It would stop a run: {', '.join(problems)}.")
        report.lines.append(f"{len(findings)} findings, no problem among them")
        version = call(self._opened(self.pool).api, "get", "/version", resource="version")
        self.record.facts["Kubernetes"] = str(version.get("gitVersion"))

    def _first_night(self, report: StepReport) -> None:
        with self._night(self.pool, report) as tasks:
            self._ensure(tasks, self.pool, report, prefetch=[self._image])
            self._plugin(tasks, report)
            self._note_pod(tasks.run(self._pod()), report)

    def _second_night(self, report: StepReport) -> None:
        """Plan no change, and kill the process that waits for the pod: another one continues."""
        plan = self._opened(self.pool).platform.plan(1)
        if plan.changes:
            changes = "; ".join(f"{each.action} {each.group}: {each.detail}" for each in plan.changes)
            raise NotAsExpected(f"A second night plans changes: {changes}.")
        report.lines.append("the plan has no change")
        with self._night(self.pool, report) as tasks:
            self._ensure(tasks, self.pool, report)
            self._plugin(tasks, report)
            self._killed_wait(tasks, report)

    def _killed_wait(self, tasks: Tasks, report: StepReport) -> None:
        operator = self._pod(hold=_HOLD_SECONDS)
        context = tasks.context_of(operator)
        with waiting_process() as waiter:
            result = tasks.begin(operator, context)
            if not isinstance(result, TaskDeferred):
                raise NotAsExpected("The task did not wait in the triggerer.")
            waiter.give(tasks.row(result))
            pod = self._running_pod(tasks)
            waiter.kill()
        report.lines.append("the process that waited for the pod was killed while the pod ran")
        while isinstance(result, TaskDeferred):
            event = tasks.event_of(result)
            seen = [each["metadata"]["uid"] for each in self._pods_of(tasks)]
            if seen != [pod["metadata"]["uid"]]:
                raise NotAsExpected(f"Expected the same one pod, found {len(seen)} or another one.")
            result = tasks.resume(operator, context, result, event)
        self._note_pod(Done(result or {}, context["ti"].xcoms), report)
        report.lines.append("another process continued with the same pod, which succeeded")

    def _running_pod(self, tasks: Tasks) -> dict[str, Any]:
        deadline = time.monotonic() + _RUNNING_WITHIN
        while time.monotonic() < deadline:
            for pod in self._pods_of(tasks):
                if (phase := pod.get("status", {}).get("phase")) == "Running":
                    return pod
                if phase in ("Succeeded", "Failed"):
                    raise NotAsExpected(f"The pod was {phase} before its wait could be killed.")
            time.sleep(_LOOK_SECONDS / 4)
        raise NotAsExpected("The pod did not run in time.")

    def _pods_of(self, tasks: Tasks) -> list[dict[str, Any]]:
        key = run_key(tasks.context_of(self._pod()), self.pool.name)
        api, path = self._opened(self.pool).api, f"/api/v1/namespaces/{self._namespace}/pods"
        return list_items(api, path, resource="pods", labelSelector=f"{RUN_LABEL}={key.hash}")

    def _fallback_night(self, report: StepReport) -> None:
        notes = self._opened(self.fallback).platform.plan(1).notes
        impossible = self.fallback.preferences.types[0]
        matching = [note for note in notes if impossible in note]
        if not matching:
            raise NotAsExpected(f"The plan does not report that {impossible} is unavailable.")
        report.lines.append(matching[0])
        with self._night(self.fallback, report) as tasks:
            node = self._ensure(tasks, self.fallback, report)
            if node["instance_type"] == impossible:
                raise NotAsExpected(f"There is a {impossible}.")
            report.lines.append(f"the node is a {node['instance_type']} in {node['zone']}")

    @contextmanager
    def _night(self, pool: GpuPool, report: StepReport) -> Iterator[Tasks]:
        """Open one night's run, and scale the pool down at its end; after a signal, `_delete` does."""
        self._tasks = tasks = Tasks(f"accept__{uuid.uuid4().hex[:12]}", DAG_ID)
        self._open_nights[tasks.run_id] = pool
        try:
            yield tasks
        except TaskKilled:
            raise
        except BaseException:
            with _quietly(self._echo):
                self._scale_down(tasks, pool)
            raise
        done = self._scale_down(tasks, pool)
        report.phases.append(("scale down: machines gone", float(done.result["seconds"])))
        if done.result["nodes"] or done.result["desired"]:
            raise NotAsExpected(f"After scale-down there are {done.result['nodes']} nodes.")

    def _scale_down(self, tasks: Tasks, pool: GpuPool) -> Done:
        done = tasks.run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
        del self._open_nights[tasks.run_id]
        return done

    def _ensure(self, tasks: Tasks, pool: GpuPool, report: StepReport, prefetch: Sequence[str] = ()) -> dict[str, Any]:
        done = tasks.run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, prefetch=prefetch))
        report.phases += [(f"ensure: {each['phase']}", float(each["seconds"])) for each in done.result["timeline"]]
        report.lines += [
            f"no {each['instance_type']} {each['capacity_type']} in {each['zone']}: {each['why']}"
            for each in done.result["tried"]
        ]
        node: dict[str, Any] = done.result["nodes"][0]
        with _quietly(self._echo):
            self._note_node(node["name"], pool)
        return node

    def _plugin(self, tasks: Tasks, report: StepReport) -> None:
        started = time.monotonic()
        done = tasks.run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=self.pool))
        report.phases.append(("device plugin: GPUs allocatable", round(time.monotonic() - started, 1)))
        self.record.facts["GPUs are handed out by"] = str(done.result["served_by"])

    def _pod(self, hold: int = 0) -> GpuPodOperator:
        return GpuPodOperator(
            task_id="gpu",
            gpu_pool=self.pool,
            gpus=1,
            image=self._image,
            namespace=self._namespace,
            cmds=list(gpu_program.COMMAND),
            env_vars={gpu_program.HOLD: str(hold)},
            do_xcom_push=True,
        )

    def _note_pod(self, done: Done, report: StepReport) -> None:
        for each in done.xcoms.get("timeline") or ():
            report.phases.append((f"pod: {each['phase']}", float(each["seconds"])))
        for key, name in gpu_program.RESULT.items():
            self.record.facts[name] = str(done.result.get(key, ""))
        report.lines.append(f"nvidia-smi sees {done.result.get('gpu')}; vectors added by {done.result.get('added_by')}")

    def _note_node(self, name: str, pool: GpuPool) -> None:
        node = call(self._opened(self.pool).api, "get", f"/api/v1/nodes/{name}", resource="nodes")
        info = node.get("status", {}).get("nodeInfo") or {}
        for word, key in (
            ("Node image", "osImage"),
            ("Kernel", "kernelVersion"),
            ("kubelet", "kubeletVersion"),
            ("Container runtime", "containerRuntimeVersion"),
        ):
            self.record.facts[word] = str(info.get(key, ""))
        self.record.facts["Room for images and pods"] = f"{(room := _room(node))} GiB"
        if pool.room_for_images is not None and room < pool.room_for_images * _OF_A_VOLUME:
            raise NotAsExpected(
                f"{name} has room for {room} GiB of images and pods; the pool's disk has {pool.room_for_images}."
            )

    def _delete(self, report: StepReport) -> None:
        failed = []
        for run_id, pool in tuple(self._open_nights.items()):
            with _quietly(self._echo):
                self._scale_down(Tasks(run_id, DAG_ID), pool)
        for pool in (self.pool, self.fallback):
            try:
                delete = DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool, force=True)
                done = Tasks("accept__end", DAG_ID).run(delete)
                report.lines.append(f"{pool.name}: {len(done.result['deleted'])} groups deleted")
            except GpuError as error:
                failed.append(f"{pool.name}: {type(error).__name__}: {error}")
        if failed:
            raise NotAsExpected(" ".join(failed))

    def _nothing_is_left(self, report: StepReport) -> None:
        """Ask until the lists are empty: what was just deleted may be listed for a while."""
        deadline = time.monotonic() + _GONE_WITHIN
        while True:
            self.record.lists = remains(self.pool.name, self.fallback.name, pool=self.pool)
            if not _costly(self.record.lists) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        check_nothing_left(self.record.lists, report)

    def _opened(self, pool: GpuPool) -> Reconciler:
        return open_pool(pool, owner=INSTALLATION, holder=f"airflow gpu accept:{os.getpid()}", report=self._echo)


def check_nothing_left(lists: Sequence[Listed], report: StepReport) -> None:
    """Tell what the lists have.

    Raises:
        NotAsExpected: Something that costs is left, or a list could not be read.
    """
    report.lines += [str(each) for each in lists if each.left or each.unasked]
    if left := _costly(lists):
        raise NotAsExpected(f"Something is left: {', '.join(each.what for each in left)}.")
    if any(each.unasked for each in lists):
        raise NotAsExpected("Some resources could not be listed, so leftovers are possible.")
    report.lines.append(f"{len(lists)} lists were read, and none has anything that costs money")


def _costly(lists: Sequence[Listed]) -> list[Listed]:
    return [each for each in lists if each.costs and each.left]


def _room(node: dict[str, Any]) -> int:
    """Return how many GiB a node has for images and pods, by its kubelet."""
    capacity = str(node.get("status", {}).get("capacity", {}).get("ephemeral-storage", "0"))
    return int(parse_quantity(capacity) / 2**30)


@contextmanager
def _quietly(echo: Report) -> Iterator[None]:
    """Tell an error of what is tried once more later, or must not hide the first one."""
    try:
        yield
    except GpuError as error:
        echo(f"{type(error).__name__}: {error}")
