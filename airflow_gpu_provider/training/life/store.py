"""TaskObjects: what a task has created - pods, or objects under which pods run - found by owner, created once, deleted.

A pod is an object as well: it is its own only pod. All are JSON, as the API server has them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.providers.cncf.kubernetes.utils.pod_manager import EMPTY_XCOM_RESULT, PodManager
from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from kubernetes.client import ApiClient, V1Pod
from kubernetes.stream import stream

from airflow_gpu_provider.cluster.api.clock import Clock
from airflow_gpu_provider.cluster.api.nodes import read_node
from airflow_gpu_provider.cluster.api.pods import mark_collected
from airflow_gpu_provider.cluster.api.rest import call, delete, list_items
from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, Json, PodState
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, STUCK_AFTER
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound, ThirdObjectChanged
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.errors import ObjectRejected, PermissionDenied, PodFailed
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.place.indexed_job import headless_service
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadKind
from airflow_gpu_provider.training.wait.pod_wait import UNCONFIRMED
from airflow_gpu_provider.untrusted import NotStorable, loads, storable

RESULT_FILE = f"{PodDefaults.XCOM_MOUNT_PATH}/return.json"
LONGEST_RESULT = 4 * 2**20
"""Bytes of a result: it goes through a worker's memory into Airflow's database."""
NAME_FREED_IN = 120.0
"""Seconds within which a deleted object is gone: KubeRay's finalizer holds a RayJob until it is stopped."""
_LOOK_EVERY = 0.5

_log = logging.getLogger(__name__)


class TaskObjects:
    """Reads and writes a task's objects of one kind; `path` is the collection's, with "{namespace}"."""

    _free_the_name = "Delete it, or leave random_name_suffix=True."
    _only = ""
    """A selector for which of a task's objects of the kind these are."""

    def __init__(self, api: ApiClient, *, kind: str, path: str) -> None:
        self._api = api
        self.kind = kind
        self._path = f"/{path}"
        self._resource = path.rpartition("/")[2]

    def of_task(self, namespace: str, owner: Ownership) -> list[Json]:
        """Return the task's objects, those of earlier tries too."""
        selector = ",".join(filter(None, (self._only, owner.selector)))
        path = self._path.format(namespace=namespace)
        return [*list_items(self._api, path, resource=self._resource, labelSelector=selector)]

    def read(self, name: str, namespace: str, *, uid: str | None) -> Json | None:
        """Return the object as it is now; None if it is not there, or another one has its name."""
        path = f"{self._path.format(namespace=namespace)}/{name}"
        try:
            found = call(self._api, "get", path, resource=self._resource)
        except ObjectNotFound:
            return None
        return found if uid in (None, found["metadata"]["uid"]) else None

    def create(self, request: Json, owner: Ownership) -> Json:
        """Create the object, or return what an earlier attempt with a lost answer has created.

        Raises:
            PodFailed: Another one has the name.
            ThirdObjectChanged: For two minutes the namespace's quota, or another object, changed meanwhile.
            GpuError: It is refused, for example because the cluster does not know its kind.
        """
        name, namespace = request["metadata"]["name"], request["metadata"]["namespace"]
        path = self._path.format(namespace=namespace)
        made = create_once(
            lambda: call(self._api, "create", path, resource=self._resource, body=request),
            lambda: self.read(name, namespace, uid=None),
            is_own=lambda there: is_of_attempt(there, owner),
        )
        if isinstance(made, ThirdObjectChanged):
            raise made
        if isinstance(made, str):
            raise PodFailed(f"A {self.kind} named {name} already exists in {namespace}: {made}.", self._free_the_name)
        return made

    def reattach(self, there: Json) -> None:
        """Complete what an interrupted creation has left behind."""

    def is_suspended(self, there: Json) -> bool:
        """Return True if it is suspended and creates no pods."""
        return False

    def delete(self, there: Json) -> None:
        """Delete the object that was read, with everything it owns; do nothing if another one has its name."""
        uid = there["metadata"].get("uid") or ""
        delete(self._api, self._path_of(there), resource=self._resource, uid=uid, with_dependents=True)

    def delete_when_killed(self, there: Json, *, grace_seconds: int | None) -> None:
        """Delete it in a process that may be killed any moment."""
        self.delete(there)

    def end_pods(self, there: Json) -> None:
        """Have its running pods deleted; the object stays, and can be read."""

    def mark_collected(self, objects: Iterable[Json]) -> None:
        """Note of kept objects that their logs and results have been read."""
        for each in objects:
            self._patch(each, {"metadata": {"annotations": {UNCOLLECTED: None}}})

    def _patch(self, there: Json, body: Json) -> None:
        path = self._path_of(there)
        try:
            call(self._api, "patch", path, resource=self._resource, body=body)
        except (ObjectNotFound, ObjectChanged):
            return

    def _path_of(self, there: Json) -> str:
        return f"{self._path.format(namespace=there['metadata']['namespace'])}/{there['metadata']['name']}"


class TaskPods(TaskObjects):
    """Reads and writes a task's pods. When a pod ran is recorded before it is deleted, for its run's bill."""

    def __init__(self, api: ApiClient) -> None:
        super().__init__(api, kind="pod", path="api/v1/namespaces/{namespace}/pods")

    def of_attempt(self, namespace: str, owner: Ownership) -> list[Json]:
        """Return the attempt's pods, whether or not the object under which they ran still exists."""
        return [pod for pod in self.of_task(namespace, owner) if is_of_attempt(pod, owner)]

    def await_end(self, pods: Iterable[Json], clock: Clock, report: Callable[[str], None]) -> None:
        """Wait until none of these deleted pods can still run: two pods of one task would write the same checkpoint.

        It takes at most a pod's grace period, and half a minute more if its node does not answer.
        """
        for pod in pods:
            is_logged = False
            while (state := self.state(pod)) is not None and self._may_still_run(state, clock):
                if not is_logged:
                    is_logged = True
                    until = f", its grace period is over at {state.gone_by:%H:%M:%S} UTC" if state.gone_by else ""
                    report(f"Waiting for pod {state.name} of an earlier try or attempt to end{until}.")
                clock.sleep(2 * _LOOK_EVERY)

    def state(self, pod: Json) -> PodState | None:
        """Return its state as it is now, without a main container; None if it is gone."""
        meta = pod["metadata"]
        now = self.read(meta["name"], meta["namespace"], uid=meta["uid"])
        return PodState.parse(now, "") if now is not None else None

    def _may_still_run(self, state: PodState, clock: Clock) -> bool:
        if state.node is None:
            return False
        node: bool | None
        try:
            node = read_node(self._api, state.node).ready
        except ObjectNotFound:
            node = None
        except PermissionDenied:
            node = True
        return may_still_run(state, node_is_ready=node, now=clock.now())

    def delete(self, there: Json) -> None:
        self.note_use([there])
        if held := _finalizers_of_ended(self._delete(there) or {}):
            _log.info("Pod %s is deleted, and goes when its finalizer %s is taken off.", _name(there), held)

    def delete_when_killed(self, there: Json, *, grace_seconds: int | None) -> None:
        last = self._delete(there, {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds})
        self.note_use([last or {}])  # afterwards: a running pod costs more than what is not known of it

    def _delete(self, there: Json, options: Json | None = None) -> Json | None:
        """Delete the pod that was read; return what the API server answers, None if it is gone."""
        body = {"preconditions": {"uid": there["metadata"]["uid"]}, **(options or {})}
        try:
            return call(self._api, "delete", self._path_of(there), resource="pods", body=body)
        except (ObjectNotFound, ObjectChanged):
            return None

    def mark_collected(self, pods: Iterable[Json]) -> None:
        """Allow the nodes of kept pods to be released: their logs and results have been read."""
        for pod in pods:
            mark_collected(self._api, pod["metadata"]["namespace"], _name(pod))

    def note_use(self, pods: Iterable[Json]) -> None:
        """Record when and where the pods ran."""
        record_pods(lambda: self._api, pods, _log.warning)

    def note_computed(self, pods: Iterable[Json], share: float, *, sampled: timedelta) -> None:
        """Record, for the bill, the share (0 to 1) of the sampled time in which the pods' GPUs computed."""
        record_pods(lambda: self._api, pods, _log.warning, computed=share, sampled=sampled)


class TaskWorkloads(TaskObjects):
    """Reads and writes a task's workloads."""

    _free_the_name = "Give metadata.generateName, like train-, instead of metadata.name: each then has its own name."

    def __init__(self, api: ApiClient, kind: WorkloadKind) -> None:
        super().__init__(api, kind=kind.kind, path=kind.path)
        self._row = kind

    def of_task(self, namespace: str, owner: Ownership) -> list[Json]:
        try:
            return super().of_task(namespace, owner)
        except ObjectNotFound as error:
            raise ObjectRejected(
                f"The cluster has no {self._row.api_version} {self.kind}.", f"Install what serves {self._row.plural}."
            ) from error

    def is_suspended(self, there: Json) -> bool:
        return self._row.is_suspended(there)

    def end_pods(self, there: Json) -> None:
        self._patch(there, self._row.suspension())


class TaskGangs(TaskObjects):
    """Reads and writes a task's Jobs of several ranks."""

    _only = GANG_LABEL

    def __init__(self, api: ApiClient) -> None:
        super().__init__(api, kind="Job", path=KINDS["Job"].path)

    def create(self, request: Json, owner: Ownership) -> Json:
        """Create the Job and its Service, or return what an earlier attempt with a lost answer has created."""
        made = super().create(request, owner)
        self.reattach(made)
        return made

    def reattach(self, there: Json) -> None:
        """Create the Job's headless Service, unless it exists."""
        path = f"/api/v1/namespaces/{there['metadata']['namespace']}/services"
        _created(lambda: call(self._api, "create", path, resource="services", body=headless_service(there)))

    def is_suspended(self, there: Json) -> bool:
        return KINDS["Job"].is_suspended(there)

    def end_pods(self, there: Json) -> None:
        self._patch(there, {"spec": {"parallelism": 0}})


class CarefulPodManager(PodManager):
    """Deletes a pod for KubernetesPodOperator as TaskPods does: only if it is the one that was read.

    It reads no more of a pod's result than Airflow can store.
    """

    def extract_xcom_json(self, pod: V1Pod) -> str:
        """Return the text in a pod's result file, its texts plain, or EMPTY_XCOM_RESULT.

        Raises:
            NotStorable: It is longer than LONGEST_RESULT, or JSON that Airflow's database refuses.
            json.JSONDecodeError: It is no JSON.
        """
        head = f"head -c {LONGEST_RESULT + 1} {RESULT_FILE}"
        read = f"if [ -s {RESULT_FILE} ]; then {head}; else echo {EMPTY_XCOM_RESULT}; fi"
        exec_in = self._client.connect_get_namespaced_pod_exec
        where = {"container": PodDefaults.SIDECAR_CONTAINER_NAME, "command": ["/bin/sh", "-c", read]}
        ways = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "_preload_content": False}
        with closing(stream(exec_in, pod.metadata.name, pod.metadata.namespace, **where, **ways)) as answer:
            answer.run_forever()
            text: str = answer.read_all()
        if len(text) > LONGEST_RESULT:
            raise NotStorable(f"it is longer than {LONGEST_RESULT // 2**20} MiB")
        return text if text.rstrip() == EMPTY_XCOM_RESULT else json.dumps(storable(loads(text)))

    def delete_pod(self, pod: V1Pod) -> None:
        api = self._client.api_client
        TaskPods(api).delete(api.sanitize_for_serialization(pod))

    def mark_collected(self, pod: V1Pod) -> None:
        """Allow a kept pod's node to be released."""
        api = self._client.api_client
        raw, pods = api.sanitize_for_serialization(pod), TaskPods(api)
        pods.note_use([raw])
        pods.mark_collected([raw])


def as_v1(pod: Json) -> V1Pod:
    """Return a pod as KubernetesPodOperator has it."""
    return PodGenerator.deserialize_model_dict(dict(pod))


def newest_of_try(there: Iterable[Json], owner: Ownership) -> Json | None:
    """Return what the try's latest attempt has created, if it exists; what is being deleted is left out."""
    of_try = (each for each in there if _annotation(each, OWNER_ANNOTATION) == owner.try_id)
    return max((each for each in of_try if not is_going(each)), key=attempt_of, default=None)


def is_going(there: Json) -> bool:
    """Return True for what is being deleted."""
    return "deletionTimestamp" in there["metadata"]


def attempt_of(there: Json) -> int:
    """Return its attempt number within the try."""
    return int(_annotation(there, ATTEMPT_ANNOTATION) or 1)


def is_of_attempt(there: Json, owner: Ownership) -> bool:
    return (_annotation(there, OWNER_ANNOTATION), attempt_of(there)) == (owner.try_id, owner.attempt)


def _annotation(there: Json, name: str) -> str | None:
    value: str | None = (there["metadata"].get("annotations") or {}).get(name)
    return value


def _name(there: Json) -> str:
    return str(there["metadata"]["name"])


def _created(create: Callable[[], Json]) -> Json | None:
    """Return what was created, although third objects change meanwhile, such as a quota; None if its name is taken.

    Raises:
        ThirdObjectChanged: They did so for NAME_FREED_IN.
    """
    give_up_at = time.monotonic() + NAME_FREED_IN
    while True:
        try:
            return create()
        except ThirdObjectChanged:
            if time.monotonic() > give_up_at:
                raise
        except ObjectChanged:
            return None
        time.sleep(_LOOK_EVERY)


def create_once(
    create: Callable[[], Json], read: Callable[[], Json | None], *, is_own: Callable[[Json], bool]
) -> Json | str | ThirdObjectChanged:
    """Return the object, created now or earlier by the same attempt; if another one keeps the name, why, as text.

    `create` raises ObjectChanged if its name is taken, and `read` returns what has the name then; ThirdObjectChanged,
    which is returned if it lasts, says nothing of the name.
    """
    give_up_at = time.monotonic() + NAME_FREED_IN
    while True:
        try:
            made = _created(create)
        except ThirdObjectChanged as error:
            return error
        if made is not None:
            return made
        there = read()
        if there is not None and not is_going(there):
            return there if is_own(there) else "it belongs to another task"
        if time.monotonic() > give_up_at:
            return _why_there(there)
        time.sleep(_LOOK_EVERY)


def _why_there(there: Json | None) -> str:
    held = ", ".join((there or {"metadata": {}})["metadata"].get("finalizers") or ())
    return f"it is deleted, and kept by its finalizer {held}" if held else "it is still being deleted"


def _finalizers_of_ended(deleted: Json) -> str:
    """Return what keeps a deleted pod, if it has ended: its controller takes it off, or is down."""
    status = deleted.get("status")
    has_ended = isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")
    return ", ".join(deleted["metadata"].get("finalizers") or ()) if has_ended else ""


def may_still_run(pod: PodState, *, node_is_ready: bool | None, now: datetime) -> bool:
    """Return True if a container of a deleted pod may still run; `node_is_ready` is None if its node has left."""
    if pod.phase in ("Succeeded", "Failed") or pod.node is None or node_is_ready is None:
        return False
    if pod.gone_by is None:
        return True
    return now < pod.gone_by + (STUCK_AFTER if node_is_ready else UNCONFIRMED)
