"""WorkloadObjects: a task's workloads in the cluster - found by owner, created once, deleted only if the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.pods import UNCOLLECTED
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, label_selector, list_items
from airflow_gpu_provider.errors import GpuError, ObjectRejected, PodFailed
from airflow_gpu_provider.pods.ownership import TASK_LABEL, Ownership
from airflow_gpu_provider.workloads.create_once import create_once
from airflow_gpu_provider.workloads.kinds import WorkloadKind

Workload = dict[str, Any]

_log = logging.getLogger(__name__)


class WorkloadObjects:
    """Reads and writes a task's objects of one kind, and reads their pods."""

    def __init__(self, api: ApiClient, kind: WorkloadKind) -> None:
        self._api = api
        self.kind = kind

    def of_task(self, namespace: str, owner: Ownership) -> list[Workload]:
        """Return the task's objects, those of earlier tries too."""
        return self._list(namespace, owner.selector)

    def newest_of_try(self, namespace: str, owner: Ownership) -> Workload | None:
        """Return what this try's latest attempt has made, if it is there; what is being deleted already is left out."""
        return newest_of_try(self.of_task(namespace, owner), owner)

    def read(self, name: str, namespace: str, *, uid: str | None) -> Workload | None:
        """Return the object as it is now; None if it is not there, or another one has its name."""
        try:
            found = call(self._api, "get", f"{self._path(namespace)}/{name}", resource=self.kind.plural)
        except ObjectNotFound:
            return None
        return found if uid in (None, found["metadata"]["uid"]) else None

    def pods_of(self, workload: Workload) -> list[Workload]:
        """Return its pods, as JSON: those that say that they are of the same attempt."""
        metadata = workload["metadata"]
        selector = label_selector({TASK_LABEL: (metadata.get("labels") or {}).get(TASK_LABEL, "")})
        return [pod for pod in self._pods(metadata["namespace"], selector) if _attempt(pod) == _attempt(workload)]

    def pods_of_attempt(self, namespace: str, owner: Ownership) -> list[Workload]:
        """Return the attempt's pods, as JSON, whether their object is still there or not."""
        return [pod for pod in self._pods(namespace, owner.selector) if is_of_attempt(pod, owner)]

    def _pods(self, namespace: str, selector: str) -> list[Workload]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return list_items(self._api, path, resource="pods", labelSelector=selector)

    def create(self, workload: Workload, owner: Ownership) -> Workload:
        """Create the object, or return what an earlier attempt with a lost answer has created.

        Raises:
            PodFailed: Another one has the name.
            GpuError: It is refused: the cluster does not know its kind, say.
        """
        metadata = workload["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            made = create_once(
                lambda: call(self._api, "create", self._path(namespace), resource=self.kind.plural, body=workload),
                lambda: self.read(name, namespace, uid=None),
                is_own=lambda there: is_of_attempt(there, owner),
            )
        except ObjectNotFound as error:
            raise ObjectRejected(
                f"The cluster has no namespace {namespace}.", "Create it, or name another in the manifest."
            ) from error
        if made is None:
            raise PodFailed(
                f"A {self.kind.kind} named {name} exists in {namespace}, and is not this task's, or does not go.",
                "Give metadata.name a part that differs from run to run, like {{ ts_nodash | lower }}.",
            )
        return made

    def delete(self, workload: Workload) -> bool:
        """Delete the object that was read, and with it all that it owns; False if it is gone."""
        metadata = workload["metadata"]
        body: Workload = {"propagationPolicy": "Background"}
        if metadata.get("uid"):
            body["preconditions"] = {"uid": metadata["uid"]}
        path = f"{self._path(metadata['namespace'])}/{metadata['name']}"
        try:
            call(self._api, "delete", path, resource=self.kind.plural, body=body)
        except (ObjectNotFound, ObjectChanged):
            return False
        return True

    def end_pods(self, workload: Workload) -> None:
        """Have the pods that still run deleted, by suspending it; the object stays, and can be read."""
        self._patch(workload, self.kind.suspension())

    def mark_collected(self, pod: Workload) -> None:
        """Let the node of a kept pod go: its log and result are read."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        body = {"metadata": {"annotations": {UNCOLLECTED: None}}}
        try:
            call(self._api, "patch", path, resource="pods", body=body, content_type=MERGE_PATCH)
        except GpuError as error:
            _log.warning("Pod %s holds its node for ten minutes more: %s", meta["name"], error)

    def reattach(self, workload: Workload) -> None:
        """Make whole what an interrupted creation has left."""

    def _list(self, namespace: str, selector: str) -> list[Workload]:
        try:
            return list_items(self._api, self._path(namespace), resource=self.kind.plural, labelSelector=selector)
        except ObjectNotFound as error:
            raise ObjectRejected(
                f"The cluster has no {self.kind.api_version} {self.kind.kind}.",
                f"Install what serves {self.kind.plural}.",
            ) from error

    def _patch(self, workload: Workload, body: Workload) -> None:
        metadata = workload["metadata"]
        path = f"{self._path(metadata['namespace'])}/{metadata['name']}"
        try:
            call(self._api, "patch", path, resource=self.kind.plural, body=body, content_type=MERGE_PATCH)
        except (ObjectNotFound, ObjectChanged):
            return

    def _path(self, namespace: str) -> str:
        return f"/{self.kind.path.format(namespace=namespace)}"


def newest_of_try(workloads: Iterable[Workload], owner: Ownership) -> Workload | None:
    of_try = (each for each in workloads if _annotation(each, OWNER_ANNOTATION) == owner.try_id)
    there = (each for each in of_try if "deletionTimestamp" not in each["metadata"])
    return max(there, key=attempt_of, default=None)


def attempt_of(workload: Workload) -> int:
    """Return which of its try's attempts it is."""
    return int(_annotation(workload, ATTEMPT_ANNOTATION) or 1)


def is_of_attempt(workload: Workload, owner: Ownership) -> bool:
    return _attempt(workload) == (owner.try_id, owner.attempt)


def _attempt(workload: Workload) -> tuple[str | None, int]:
    return _annotation(workload, OWNER_ANNOTATION), attempt_of(workload)


def _annotation(workload: Workload, name: str) -> str | None:
    value: str | None = (workload["metadata"].get("annotations") or {}).get(name)
    return value
