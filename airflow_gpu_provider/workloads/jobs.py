"""GangJobs: the gangs of one task in the cluster - found by owner, created once, deleted only if still the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.gangs import GANG_LABEL, JOB_LABEL, jobs_path
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.pods import UNCOLLECTED
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, list_items
from airflow_gpu_provider.errors import GpuError, PodFailed
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.workloads.create_once import create_once
from airflow_gpu_provider.workloads.indexed_job import headless_service

Job = dict[str, Any]

_log = logging.getLogger(__name__)


class GangJobs:
    """Reads and writes a task's Jobs, and the Services that name their ranks."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def of_task(self, namespace: str, owner: Ownership) -> list[Job]:
        """Return the task's Jobs, those of earlier tries too."""
        selector = f"{GANG_LABEL},{owner.selector}"
        return list_items(self._api, jobs_path(namespace), resource="jobs", labelSelector=selector)

    def newest_of_try(self, namespace: str, owner: Ownership) -> Job | None:
        """Return the Job of this try's latest attempt, if there is one; what is being deleted already is left out."""
        return newest_of_try(self.of_task(namespace, owner), owner)

    def read(self, name: str, namespace: str, *, uid: str | None) -> Job | None:
        """Return the Job as it is now; None if it is not there, or another one has its name."""
        try:
            job = call(self._api, "get", f"{jobs_path(namespace)}/{name}", resource="jobs")
        except ObjectNotFound:
            return None
        return job if uid in (None, job["metadata"]["uid"]) else None

    def pods(self, name: str, namespace: str, *, uid: str) -> list[dict[str, Any]]:
        """Return the pods of this Job, as JSON."""
        path, selector = f"/api/v1/namespaces/{namespace}/pods", f"{JOB_LABEL}={name}"
        pods = list_items(self._api, path, resource="pods", labelSelector=selector)
        return [pod for pod in pods if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or ())]

    def create(self, job: Job, owner: Ownership) -> Job:
        """Create the Job and its Service, or return what an earlier attempt with a lost answer has created.

        Raises:
            PodFailed: Another Job has the name.
        """
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        made = create_once(
            lambda: call(self._api, "create", jobs_path(namespace), resource="jobs", body=job),
            lambda: self.read(name, namespace, uid=None),
            is_own=lambda there: is_of_attempt(there, owner),
        )
        if made is None:
            raise PodFailed(
                f"A Job named {name} exists in {namespace} and does not go.",
                "Delete it, or leave random_name_suffix=True.",
            )
        self.create_service(made)
        return made

    def create_service(self, job: Job) -> None:
        """Create the headless Service of the Job; fine if it is there."""
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/services"
        try:
            call(self._api, "create", path, resource="services", body=headless_service(job))
        except ObjectChanged:
            return

    def delete(self, job: Job) -> bool:
        """Delete the Job that was read, and with it pods and Service; False if it is gone."""
        meta = job["metadata"]
        body: Job = {"propagationPolicy": "Background"}
        if meta.get("uid"):
            body["preconditions"] = {"uid": meta["uid"]}
        try:
            path = f"{jobs_path(meta['namespace'])}/{meta['name']}"
            call(self._api, "delete", path, resource="jobs", body=body)
        except (ObjectNotFound, ObjectChanged):
            return False
        return True

    def end_pods(self, job: Job) -> None:
        """Have the pods that still run deleted; those that have ended stay, and can be read."""
        meta = job["metadata"]
        path, body = f"{jobs_path(meta['namespace'])}/{meta['name']}", {"spec": {"parallelism": 0}}
        try:
            call(self._api, "patch", path, resource="jobs", body=body, content_type=MERGE_PATCH)
        except (ObjectNotFound, ObjectChanged):
            return

    def mark_collected(self, pod: dict[str, Any]) -> None:
        """Let the node of a kept pod go: its log and result are read."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        body = {"metadata": {"annotations": {UNCOLLECTED: None}}}
        try:
            call(self._api, "patch", path, resource="pods", body=body, content_type=MERGE_PATCH)
        except GpuError as error:
            _log.warning("Pod %s holds its node for ten minutes more: %s", meta["name"], error)


def newest_of_try(jobs: Iterable[Job], owner: Ownership) -> Job | None:
    of_try = (job for job in jobs if _annotation(job, OWNER_ANNOTATION) == owner.try_id)
    there = (job for job in of_try if "deletionTimestamp" not in job["metadata"])
    return max(there, key=attempt_of, default=None)


def attempt_of(job: Job) -> int:
    """Return which of its try's attempts it is."""
    return int(_annotation(job, ATTEMPT_ANNOTATION) or 1)


def is_of_attempt(job: Job, owner: Ownership) -> bool:
    return _annotation(job, OWNER_ANNOTATION) == owner.try_id and attempt_of(job) == owner.attempt


def _annotation(job: Job, name: str) -> str | None:
    value: str | None = (job["metadata"].get("annotations") or {}).get(name)
    return value
