"""WorkloadAttempt: one workload of a task's try: its manifest placed and created, waited for, collected and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.jobs import QUEUE_LABEL
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.pods.creation import CREATE_WITHIN, placement_of
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodSnapshot
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.setbacks import persistently
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.workloads.kinds import Manifest, WorkloadKind, kind_of
from airflow_gpu_provider.workloads.manifest_checks import check_workload
from airflow_gpu_provider.workloads.manifest_placement import place_workload
from airflow_gpu_provider.workloads.object_attempt import ObjectAttempt
from airflow_gpu_provider.workloads.objects import Workload, WorkloadObjects
from airflow_gpu_provider.workloads.workload_logs import EACH
from airflow_gpu_provider.workloads.workload_state import WorkloadState, main_container
from airflow_gpu_provider.workloads.workload_wait import WorkloadSnapshot, WorkloadWait
from airflow_gpu_provider.workloads.workload_watch import watch_here


class WorkloadAttempt(ObjectAttempt):
    """The life of one workload. The task's `manifest` returns it as its author has written it."""

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the workload, and tell Airflow its name."""
        made = self._find_or_create(self._request())
        self._task.push("workload_name", made["metadata"]["name"])
        self._task.push("pod_namespace", made["metadata"]["namespace"])

    def create(self, request: V1Pod) -> V1Pod:
        """A workload is made by its manifest, and by no pod."""
        raise NotImplementedError

    def _request(self) -> Manifest:
        """Return what to create: the manifest, checked and placed; errors that may pass are tolerated for minutes."""

        def once() -> Manifest:
            manifest = self._manifest
            check_workload(manifest, self._task, is_wanted=lambda: self.deadlines.is_wanted)
            return place_workload(manifest, placement_of(self._task, self.owner, self.deadlines))

        return call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)

    @property
    def _manifest(self) -> Manifest:
        assert self._task.manifest is not None
        return self._task.manifest()

    @property
    def _kind(self) -> WorkloadKind:
        return kind_of(self._manifest)

    def _objects_by(self, api: ApiClient) -> WorkloadObjects:
        return WorkloadObjects(api, self._kind)

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> dict[str, Any] | None:
        """Return what the triggerer streams of all pods' logs."""
        log = self._task.pod_log
        if not log.get_logs:
            return None
        followed = {key: log.followed.get(key) for key in ("positions", "may_repeat")}
        return {"containers": EACH, "with_name": log.with_name, **followed}

    def wait(self) -> WorkloadWait:
        """Return the wait for the workload."""
        assert self._workload is not None
        metadata, owner = self._workload["metadata"], self.owner
        created_at = parse_time(metadata.get("creationTimestamp")) or self._cluster.clock.now()
        deadline = self.deadlines.of_pod(created_at)
        self.record = self.record.until(deadline)
        return WorkloadWait(
            kind=self._kind.kind,
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            task=owner.task,
            try_id=owner.try_id,
            attempt=owner.attempt,
            started=created_at,
            schedule_seconds=self._task.schedule_seconds,
            start_seconds=self._task.start_seconds,
            deadline=deadline,
            is_covered=self.deadlines.is_covered,
            gpus=self._task.gpus,
            queue=(metadata.get("labels") or {}).get(QUEUE_LABEL, ""),
        )

    def watch_here(self) -> Watched:
        """Wait in this process until the workload has ended, with its pods' logs."""
        wait, wanted = self.wait(), self.to_stream()
        narrator = Narrator(self._task.log.info, started=wait.started)
        watch = partial(
            watch_here,
            wait,
            self._cluster,
            self._task.pod_log,
            wanted,
            owner=self.owner.writer,
            narrator=narrator,
        )
        return self._task.stop.run(persistently(watch, until=wait.deadline, narrator=narrator))

    # -- its end ---------------------------------------------------------------------------------------------

    def _listed(self, watched: Watched) -> list[Workload]:
        return self._objects.pods_of_attempt(watched.namespace, self.owner)

    def _rank_of(self, pod: Json) -> str | None:
        return self._kind.pod_title(pod)

    def _base_of(self, pod: Json) -> str:
        return main_container(pod)

    def _standing(self, states: Mapping[Any, PodState]) -> Progress | None:
        if self._workload is None:
            return None
        pods = {title: PodSnapshot(pod=state) for title, state in states.items()}
        snapshot = WorkloadSnapshot(workload=WorkloadState.parse(self._workload, self._kind), pods=pods)
        return self.wait().step(snapshot, self._cluster.now())
