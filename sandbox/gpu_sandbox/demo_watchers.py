"""Write into a journal what happens in the cluster, in AWS and in Airflow, each seen from its own side."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from gpu_sandbox.airflow_api import TASK_ENDED, AirflowApi, AirflowApiError, RunStatus, errors_in
from gpu_sandbox.aws import AwsCloud
from gpu_sandbox.aws.observer import instances
from gpu_sandbox.demo_journal import Journal
from gpu_sandbox.demo_report import TRAINING_ENDED, TRAINING_STARTED
from gpu_sandbox.demo_trainings import PROVIDER
from gpu_sandbox.leftovers import GPU

KPO_LABEL = "kubernetes_pod_operator"
TRAINING_CONTAINER = "base"
RANK_ANNOTATION = "batch.kubernetes.io/job-completion-index"
POD_LOG = f"[{TRAINING_CONTAINER}]"
"""The pod's lines come into the task's log too, once the task is back; here they have come before."""
PARSED = "Worker startup parse complete"
READING = ("Describe", "Get", "List", "AssumeRole")


class Watcher:
    """A thread that works until it is told to stop. What ends its connections meanwhile is tried again."""

    def __init__(self, name: str, work: Callable[[], None], *, every: float) -> None:
        self._work = work
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        self._stopping.set()

    def stop(self, *, wait_seconds: float = 2) -> None:
        """Returns when the thread has ended, or after so long: it does no harm."""
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


class Changes:
    """What is there of one kind, then each change, as JSON objects; ends when told, or with its connection."""

    def __init__(self, list_call: Callable[..., HTTPResponse], **arguments: Any) -> None:
        self._list_call = list_call
        self._arguments = arguments
        self._known: dict[str, dict[str, Any]] = {}
        self._stream: HTTPResponse | None = None

    def __iter__(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Pairs: whether the object is still there, and the object."""
        listed = json.loads(self._list_call(_preload_content=False, **self._arguments).data)
        there = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid in self._known.keys() - there.keys():
            yield False, self._known[uid]
        for each in there.values():
            yield True, each
        self._known = there
        self._stream = self._list_call(
            watch=True,
            resource_version=listed["metadata"]["resourceVersion"],
            _preload_content=False,
            **self._arguments,
        )
        for line in _lines(self._stream.stream(amt=None)):
            yield from self._change(json.loads(line))

    def _change(self, event: dict[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        changed = event["object"]
        if event["type"] in ("ADDED", "MODIFIED"):
            self._known[changed["metadata"]["uid"]] = changed
            yield True, changed
        elif event["type"] == "DELETED":
            self._known.pop(changed["metadata"]["uid"], None)
            yield False, changed

    def end(self) -> None:
        """Unblock the thread that waits for the next change: the API server's own stop would wait for it."""
        if self._stream is not None:
            with contextlib.suppress(ValueError, RuntimeError):  # it has ended by itself
                self._stream.shutdown()


class ClusterWatch:
    """GPU Nodes, and the pods that Airflow starts, by the Kubernetes API's own watch."""

    def __init__(self, kubeconfig: Path, journal: Journal, *, ordinary_nodes: frozenset[str]) -> None:
        self._journal = journal
        self._ordinary_nodes = ordinary_nodes
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._followed: set[str] = set()
        self._node_changes = Changes(self._api.list_node)
        self._pod_changes = Changes(self._api.list_pod_for_all_namespaces, label_selector=KPO_LABEL)
        self._watchers = [
            Watcher("demo-nodes", self._nodes, every=0.1),
            Watcher("demo-pods", self._pods, every=0.1),
        ]

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.tell_to_stop()
        self._node_changes.end()
        self._pod_changes.end()
        for watcher in self._watchers:
            watcher.stop()

    def _nodes(self) -> None:
        for there, node in self._node_changes:
            name = node["metadata"]["name"]
            if name not in self._ordinary_nodes:
                what = node_state(node) if there else "gone"
                self._journal.write_change("node", name, what, where=node_place(node))

    def _pods(self) -> None:
        for there, pod in self._pod_changes:
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
            self._journal.write_change("pod", name, pod_state(pod) if there else "gone", where=node)
            if training_has_started(pod) and pod["metadata"]["uid"] not in self._followed:
                self._followed.add(pod["metadata"]["uid"])
                self._journal.write("pod", name, TRAINING_STARTED, where=node, rank=rank_of(pod))
                threading.Thread(target=self._follow, args=(pod,), name="demo-log", daemon=True).start()

    def _follow(self, pod: dict[str, Any]) -> None:
        """The training's lines as it prints them. They end when it ends: no other sign of it is as prompt."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            log = self._api.read_namespaced_pod_log(
                name, namespace, container=TRAINING_CONTAINER, follow=True, _preload_content=False
            )
            for line in _lines(log.stream(amt=None)):
                self._journal.write("log", name, line)
        except (ApiException, HTTPError) as error:
            self._journal.write("log", name, f"(the log could not be followed: {error})")
        self._journal.write("pod", name, TRAINING_ENDED, where=pod["spec"].get("nodeName", ""))


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
            Watcher("demo-tasks", self._states, every=0.5),
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
                at = task.end_date.timestamp() if task.end_date and task.state in TASK_ENDED else None
                self._journal.write_change("task", task.task_id, task.state, where=tries, at=at)
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
        at = datetime.fromisoformat(record["timestamp"]).timestamp()
        event = str(record.get("event", ""))
        if event == PARSED:
            self._journal.write("worker", task_id, "begins", at=at)
        elif event.startswith(POD_LOG):
            return
        elif PROVIDER in str(record.get("logger", "")) or record.get("level") in ("error", "critical"):
            self._journal.write("note", task_id, "\n".join([event, *errors_in(record)]), at=at)


def task_of(log_file: Path) -> str:
    """The task's id, as Airflow writes it into the folder's name."""
    return next(part.removeprefix("task_id=") for part in log_file.parts if part.startswith("task_id="))


def node_state(node: Mapping[str, Any]) -> str:
    """A Node in the words that the report looks for: "joined", then "Ready", then "Ready, 1 GPU"."""
    status = node.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
    gpus = int(status.get("allocatable", {}).get(GPU, 0))
    parts = ["Ready" if ready else "joined"]
    if gpus:
        parts.append("1 GPU" if gpus == 1 else f"{gpus} GPUs")
    if node["spec"].get("unschedulable"):
        parts.append("cordoned")
    return ", ".join(parts)


def node_place(node: Mapping[str, Any]) -> str:
    labels = node["metadata"].get("labels", {})
    names = (
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "eks.amazonaws.com/capacityType",
    )
    return " ".join(labels[name] for name in names if name in labels)


def pod_state(pod: Mapping[str, Any]) -> str:
    phase = str(pod["status"].get("phase"))
    reasons = [condition.get("reason") for condition in pod["status"].get("conditions", [])]
    return "Pending: no node has room for it" if phase == "Pending" and "Unschedulable" in reasons else phase


def rank_of(pod: Mapping[str, Any]) -> int:
    """Which of several pods it is, 0 for one by itself."""
    return int(pod["metadata"].get("annotations", {}).get(RANK_ANNOTATION, 0))


def training_has_started(pod: Mapping[str, Any]) -> bool:
    """Whether the container that trains runs, or has run already."""
    containers = pod["status"].get("containerStatuses", [])
    states = [each["state"] for each in containers if each["name"] == TRAINING_CONTAINER]
    return any("running" in state or "terminated" in state for state in states)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")
