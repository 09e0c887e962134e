"""WorkloadObjects: a task's workloads in the cluster - found by owner, created once, deleted only if the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.gang_labels import GANG_LABEL, JOB_LABEL
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.pods import TASK_LABEL
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, delete, label_selector, list_items
from airflow_gpu_provider.errors import ObjectRejected, PodFailed
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.place.indexed_job import headless_service
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadKind

Workload = dict[str, Any]


class WorkloadObjects:
    """Reads and writes a task's objects of one kind, and reads their pods."""

    _free_the_name = "Give metadata.name a part that differs from run to run, like {{ ts_nodash | lower }}."

    def __init__(self, api: ApiClient, kind: WorkloadKind) -> None:
        self._api = api
        self.kind = kind

    def of_task(self, namespace: str, owner: Ownership) -> list[Workload]:
        """Return the task's objects, those of earlier tries too."""
        return self._list(namespace, owner.selector)

    def newest_of_try(self, namespace: str, owner: Ownership) -> Workload | None:
        """Return what this try's latest attempt has created, if it exists; an object being deleted is left out."""
        return newest_of_try(self.of_task(namespace, owner), owner)

    def read(self, name: str, namespace: str, *, uid: str | None) -> Workload | None:
        """Return the object as it is now; None if it is not there, or another one has its name."""
        try:
            found = call(self._api, "get", f"{self._path(namespace)}/{name}", resource=self.kind.plural)
        except ObjectNotFound:
            return None
        return found if uid in (None, found["metadata"]["uid"]) else None

    def pods_of(self, workload: Workload) -> list[Workload]:
        """Return its pods, as JSON: those labelled with the same attempt."""
        metadata = workload["metadata"]
        selector = label_selector({TASK_LABEL: (metadata.get("labels") or {}).get(TASK_LABEL, "")})
        return [pod for pod in self._pods(metadata["namespace"], selector) if _attempt(pod) == _attempt(workload)]

    def pods_of_attempt(self, namespace: str, owner: Ownership) -> list[Workload]:
        """Return the attempt's pods, as JSON, whether or not their object still exists."""
        return [pod for pod in self._pods(namespace, owner.selector) if is_of_attempt(pod, owner)]

    def _pods(self, namespace: str, selector: str) -> list[Workload]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return list_items(self._api, path, resource="pods", labelSelector=selector)

    def create(self, workload: Workload, owner: Ownership) -> Workload:
        """Create the object, or return what an earlier attempt with a lost answer has created.

        Raises:
            PodFailed: Another one has the name.
            GpuError: It is refused, for example because the cluster does not know its kind.
        """
        name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
        made = create_once(
            lambda: call(self._api, "create", self._path(namespace), resource=self.kind.plural, body=workload),
            lambda: self.read(name, namespace, uid=None),
            is_own=lambda there: is_of_attempt(there, owner),
        )
        if made is None:
            raise PodFailed(
                f"A {self.kind.kind} named {name} already exists in {namespace}: it belongs to another task, or is"
                " still being deleted.",
                self._free_the_name,
            )
        return made

    def delete(self, workload: Workload) -> bool:
        """Delete the object that was read, with everything it owns; False if it is gone."""
        metadata = workload["metadata"]
        path, uid = f"{self._path(metadata['namespace'])}/{metadata['name']}", metadata.get("uid") or ""
        return delete(self._api, path, resource=self.kind.plural, uid=uid, with_dependents=True)

    def end_pods(self, workload: Workload) -> None:
        """Have its running pods deleted by suspending it; the object stays, and can be read."""
        self._patch(workload, self.kind.suspension())

    def reattach(self, workload: Workload) -> None:
        """Complete what an interrupted creation has left behind."""

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
    """Return its attempt number within the try."""
    return int(_annotation(workload, ATTEMPT_ANNOTATION) or 1)


def is_of_attempt(workload: Workload, owner: Ownership) -> bool:
    return _attempt(workload) == (owner.try_id, owner.attempt)


def _attempt(workload: Workload) -> tuple[str | None, int]:
    return _annotation(workload, OWNER_ANNOTATION), attempt_of(workload)


def _annotation(workload: Workload, name: str) -> str | None:
    value: str | None = (workload["metadata"].get("annotations") or {}).get(name)
    return value


NAME_FREED_IN = 120.0
"""Seconds within which a deleted object is gone: KubeRay's finalizer holds a RayJob until it is stopped."""
_LOOK_EVERY = 0.5


def create_once(
    create: Callable[[], Workload], read: Callable[[], Workload | None], *, is_own: Callable[[Workload], bool]
) -> Workload | None:
    """Return the object, created now or earlier by the same attempt; None if another object keeps the name.

    Args:
        create: Creates it; raises ObjectChanged if its name is taken.
        read: Returns the object that has the name now.
        is_own: Returns whether that belongs to the same attempt.
    """
    give_up_at = time.monotonic() + NAME_FREED_IN
    while True:
        try:
            return create()
        except ObjectChanged:
            there = read()
        is_going = there is None or "deletionTimestamp" in there["metadata"]
        if not is_going:
            return there if there is not None and is_own(there) else None
        if time.monotonic() > give_up_at:
            return None
        time.sleep(_LOOK_EVERY)


class GangJobs(WorkloadObjects):
    """Reads and writes a task's Jobs of several ranks, and reads their pods."""

    _free_the_name = "Delete it, or leave random_name_suffix=True."

    def __init__(self, api: ApiClient) -> None:
        super().__init__(api, KINDS["Job"])

    def of_task(self, namespace: str, owner: Ownership) -> list[Workload]:
        """Return the task's gangs, those of earlier tries too."""
        return self._list(namespace, f"{GANG_LABEL},{owner.selector}")

    def pods_of(self, workload: Workload) -> list[Workload]:
        """Return the Job's pods, as JSON; without a uid, those of any Job that has had its name."""
        meta = workload["metadata"]
        path, selector = f"/api/v1/namespaces/{meta['namespace']}/pods", f"{JOB_LABEL}={meta['name']}"
        pods = list_items(self._api, path, resource="pods", labelSelector=selector)
        owners = [{each["uid"] for each in pod["metadata"].get("ownerReferences") or ()} for pod in pods]
        return [pod for pod, uids in zip(pods, owners, strict=True) if not meta["uid"] or meta["uid"] in uids]

    def create(self, workload: Workload, owner: Ownership) -> Workload:
        """Create the Job and its Service, or return what an earlier attempt with a lost answer has created."""
        made = super().create(workload, owner)
        self.reattach(made)
        return made

    def reattach(self, workload: Workload) -> None:
        """Create the Job's headless Service, unless it exists."""
        path = f"/api/v1/namespaces/{workload['metadata']['namespace']}/services"
        try:
            call(self._api, "create", path, resource="services", body=headless_service(workload))
        except ObjectChanged:
            return

    def end_pods(self, workload: Workload) -> None:
        """Have the running pods deleted; those that have ended stay, and can be read."""
        self._patch(workload, {"spec": {"parallelism": 0}})
