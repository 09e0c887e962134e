"""Write into a journal what happens in the cluster, in AWS and in Airflow, each seen from its own side."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.sandbox.airflow_api import AirflowApi, AirflowApiError, RunStatus
from airflow_gpu_provider.sandbox.aws import AwsCloud
from airflow_gpu_provider.sandbox.demo_journal import Journal
from airflow_gpu_provider.sandbox.demo_report import PARSED, TRAINING_ENDED, TRAINING_STARTED
from airflow_gpu_provider.sandbox.leftovers import GPU, instances

KPO_LABEL = "kubernetes_pod_operator"
TRAINING_CONTAINER = "base"
OWN_LOGGER = "airflow_gpu_provider"
READING = ("Describe", "Get", "List", "AssumeRole")


class Watcher:
    """A thread that works until it is told to stop. What ends its connections meanwhile is tried again."""

    def __init__(self, name: str, work: Callable[[], None], *, every: float) -> None:
        self._work = work
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, *, wait_seconds: float = 2) -> None:
        self._stopping.set()
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except (ApiException, HTTPError, AirflowApiError, BotoCoreError, ClientError, OSError):
                if self._stopping.is_set():
                    return
            self._stopping.wait(self._every)


class ClusterWatch:
    """GPU Nodes, and the pods that Airflow starts, by the Kubernetes API's own watch."""

    def __init__(self, kubeconfig: Path, journal: Journal, *, ordinary_nodes: frozenset[str]) -> None:
        self._journal = journal
        self._ordinary_nodes = ordinary_nodes
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._followed: set[str] = set()
        self._watchers = [
            Watcher("demo-nodes", self._nodes, every=0.1),
            Watcher("demo-pods", self._pods, every=0.1),
        ]

    def stop(self) -> None:
        """Returns at once: the watches end when the API server does, or after seconds."""
        for watcher in self._watchers:
            watcher.stop(wait_seconds=0)

    def _nodes(self) -> None:
        for kind, node in _changes(self._api.list_node):
            if node.metadata.name not in self._ordinary_nodes:
                what = "gone" if kind == "DELETED" else node_state(node)
                self._journal.write_change("node", node.metadata.name, what, where=_place(node))

    def _pods(self) -> None:
        for kind, pod in _changes(self._api.list_pod_for_all_namespaces, label_selector=KPO_LABEL):
            name = pod.metadata.name
            self._journal.write_change(
                "pod", name, "gone" if kind == "DELETED" else pod_state(pod), where=pod.spec.node_name or ""
            )
            container = _training_container(pod)
            if container and container.state.running and pod.metadata.uid not in self._followed:
                self._followed.add(pod.metadata.uid)
                self._journal.write("pod", name, TRAINING_STARTED, where=pod.spec.node_name)
                threading.Thread(target=self._follow, args=(pod,), name="demo-log", daemon=True).start()

    def _follow(self, pod: client.V1Pod) -> None:
        """The training's lines as it prints them. They end when it ends: no other sign of it is as prompt."""
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            log = self._api.read_namespaced_pod_log(
                name, namespace, container=TRAINING_CONTAINER, follow=True, _preload_content=False
            )
            for line in _lines(log.stream(amt=None)):
                self._journal.write("log", name, line)
        except (ApiException, HTTPError) as error:
            self._journal.write("log", name, f"(the log could not be followed: {error})")
        self._journal.write("pod", name, TRAINING_ENDED, where=pod.spec.node_name)


class CloudWatch:
    """What AWS is asked to change, and the EC2 instances, both from AWS's own side."""

    def __init__(self, aws: AwsCloud, journal: Journal) -> None:
        self._aws = aws
        self._journal = journal
        self._seen = aws.calls
        self._watchers = [
            Watcher("demo-calls", self._calls, every=0.02),
            Watcher("demo-machines", self._machines, every=0.2),
        ]

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.stop()
        self._machines()

    def _calls(self) -> None:
        calls = self._aws.calls
        for operation in calls - self._seen:
            service, _, name = operation.partition(":")
            if not name.startswith(READING):
                self._journal.write("call", service, name)
        self._seen = calls

    def _machines(self) -> None:
        for instance in instances(self._aws):
            state = instance["State"]["Name"]
            what = {"pending": "launched", "running": "launched", "terminated": "gone"}.get(state, state)
            market = instance.get("InstanceLifecycle", "on-demand")
            where = f"{instance['Placement']['AvailabilityZone']} {instance['InstanceType']} {market}"
            self._journal.write_change("machine", instance["InstanceId"], what, where=where)


class AirflowWatch:
    """The run's and its tasks' states by Airflow's API, and what the tasks log by their log files."""

    def __init__(self, api: AirflowApi, run: RunStatus, logs: Path, journal: Journal) -> None:
        self._api = api
        self._run = run
        self._logs = logs / f"dag_id={run.dag_id}" / f"run_id={run.run_id}"
        self._journal = journal
        self._read: dict[Path, int] = {}
        self._watchers = [
            Watcher("demo-tasks", self._states, every=0.3),
            Watcher("demo-task-logs", self.read_logs, every=0.2),
        ]

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.stop()
        self._states()
        self.read_logs()

    def _states(self) -> None:
        for task in self._api.tasks(self._run.dag_id, self._run.run_id):
            if task.state is not None:
                tries = f"try {task.try_number}" if task.try_number > 1 else ""
                self._journal.write_change("task", task.task_id, task.state, where=tries)
        run = self._api.run(self._run.dag_id, self._run.run_id)
        if run.ended:
            self._journal.write_change("run", run.run_id, run.state)

    def read_logs(self) -> None:
        """Take in the lines that came since the last time."""
        for path in sorted(self._logs.rglob("*.log*")) if self._logs.exists() else []:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take_in(task_of(path), line)

    def _take_in(self, task_id: str, line: bytes) -> None:
        try:
            record: Mapping[str, Any] = json.loads(line)
        except ValueError:
            return  # a line that something printed past the logging
        event = str(record.get("event", ""))
        if OWN_LOGGER in str(record.get("logger", "")) or event == PARSED:
            self._journal.write("note", task_id, event, at=datetime.fromisoformat(record["timestamp"]).timestamp())


def task_of(log_file: Path) -> str:
    """The task's id, as Airflow writes it into the folder's name."""
    return next(part.removeprefix("task_id=") for part in log_file.parts if part.startswith("task_id="))


def node_state(node: client.V1Node) -> str:
    """A Node in the words that the report looks for: "joined", then "Ready", then "Ready, 1 GPU"."""
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or [])
    gpus = int((node.status.allocatable or {}).get(GPU, 0))
    parts = ["Ready" if ready else "joined"]
    if gpus:
        parts.append("1 GPU" if gpus == 1 else f"{gpus} GPUs")
    if node.spec.unschedulable:
        parts.append("cordoned")
    return ", ".join(parts)


def pod_state(pod: client.V1Pod) -> str:
    phase: str = pod.status.phase
    for condition in pod.status.conditions or []:
        if phase == "Pending" and condition.reason == "Unschedulable":
            return "Pending: no node has room for it"
    return phase


def _training_container(pod: client.V1Pod) -> client.V1ContainerStatus | None:
    return next((c for c in pod.status.container_statuses or [] if c.name == TRAINING_CONTAINER), None)


def _place(node: client.V1Node) -> str:
    labels = node.metadata.labels or {}
    names = ("topology.kubernetes.io/zone", "node.kubernetes.io/instance-type", "eks.amazonaws.com/capacityType")
    return " ".join(labels[name] for name in names if name in labels)


def _changes(list_call: Callable[..., Any], **arguments: Any) -> Iterator[tuple[str, Any]]:
    """What is there now, then each change for a few seconds; the caller comes again."""
    for event in watch.Watch().stream(list_call, timeout_seconds=20, _request_timeout=30, **arguments):
        yield event["type"], event["object"]


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")
