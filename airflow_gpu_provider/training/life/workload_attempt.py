"""WorkloadAttempt: one workload of a task's try: its manifest is placed, created, waited for, collected and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.errors import EndUnknown, GpuError
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.scaling.wait.retry import call_with_retries
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN, check_pods, placement_of
from airflow_gpu_provider.training.life.object_attempt import ObjectAttempt
from airflow_gpu_provider.training.life.objects import Workload, WorkloadObjects
from airflow_gpu_provider.training.log.object_logs import EACH
from airflow_gpu_provider.training.place.kinds import Manifest, WorkloadKind, kind_of
from airflow_gpu_provider.training.place.manifest_placement import place_workload, training_pods
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome
from airflow_gpu_provider.training.wait.workload_state import WorkloadState, main_container
from airflow_gpu_provider.training.wait.workload_wait import WorkloadSnapshot, WorkloadWait
from airflow_gpu_provider.training.watch.object_following import WorkloadFollowing


class WorkloadAttempt(ObjectAttempt):
    """The life of one workload. The task's `manifest` returns it as written by its author."""

    following = WorkloadFollowing()

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        made = self._find_or_create(self._request())
        self._task.push("workload_name", made["metadata"]["name"])
        self._task.push("pod_namespace", made["metadata"]["namespace"])

    def create(self, request: V1Pod) -> V1Pod:
        """Unused: a workload is created from its manifest, not from a pod."""
        raise NotImplementedError

    def _request(self) -> Manifest:
        """Return what to create: the manifest, checked and placed; transient errors are tolerated for minutes."""

        def once() -> Manifest:
            manifest = self._manifest
            check_pods(self._task, training_pods(manifest), is_wanted=lambda: self.deadlines.is_wanted)
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
        containers = [] if log.is_left_to_worker else EACH
        return {"containers": containers, "with_name": log.with_name, **log.to_go_on()}

    def wait(self) -> WorkloadWait:
        assert self._workload is not None
        metadata, owner = self._workload["metadata"], self.owner
        return WorkloadWait(
            kind=self._kind.kind,
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            task=owner.task,
            try_id=owner.try_id,
            attempt=owner.attempt,
            **self._limits(parse_time(metadata.get("creationTimestamp"))),
            queue=(metadata.get("labels") or {}).get(QUEUE_LABEL, ""),
        )

    def why_not_again(self, error: GpuError) -> str:
        """Return why a workload that vanished is not run again by itself: its ttl deletes one that has finished."""
        is_its_own = isinstance(error, EndUnknown) and "rank" not in error.details
        return "it may have finished" if is_its_own else ""

    # -- its end ---------------------------------------------------------------------------------------------

    def _listed(self, watched: WaitOutcome) -> list[Workload]:
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
