"""WorkloadAttempt: one workload of a task's try: its manifest is placed, created, waited for, collected and deleted."""

from __future__ import annotations

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.errors import EndUnknown, GpuError
from airflow_gpu_provider.pools.queued_nodes import check_nodes_come
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.scaling.wait.retry import call_with_retries
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN, check_pods, placement_of
from airflow_gpu_provider.training.life.object_attempt import ObjectAttempt
from airflow_gpu_provider.training.life.run import WorkloadHost
from airflow_gpu_provider.training.life.store import TaskObjects, TaskWorkloads
from airflow_gpu_provider.training.log.object_logs import EACH
from airflow_gpu_provider.training.place.kinds import Manifest, WorkloadKind, kind_of
from airflow_gpu_provider.training.place.manifest import queue_in
from airflow_gpu_provider.training.place.manifest_placement import place_workload, training_pods
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait


class WorkloadAttempt(ObjectAttempt[str]):
    """The life of one workload. The operator has it as written by its author."""

    _host: WorkloadHost

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        made = self._find_or_create(self._request())
        self._host.push("workload_name", made["metadata"]["name"])
        self._host.push("pod_namespace", made["metadata"]["namespace"])

    def _request(self) -> Manifest:
        """Return what to create: the manifest, checked and placed; transient errors are tolerated for minutes."""

        def once() -> Manifest:
            manifest = self._host.named_manifest
            check_nodes_come(self._cluster.pool, nodes=1, gpus=0, queue=queue_in(manifest))
            check_pods(self._run, training_pods(manifest), is_wanted=lambda: self.deadlines.is_wanted)
            return place_workload(manifest, placement_of(self._run, self.owner, self.deadlines))

        return call_with_retries(once, within=CREATE_WITHIN, report=self.log.warning)

    @property
    def _kind(self) -> WorkloadKind:
        return kind_of(self._host.named_manifest)

    def _objects_by(self, api: ApiClient) -> TaskObjects:
        return TaskWorkloads(api, self._kind)

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> Json | None:
        """Return what the triggerer streams of all pods' logs."""
        log = self._run.pod_log
        if not log.get_logs:
            return None
        containers = [] if log.is_left_to_worker else EACH
        return {"containers": containers, "with_name": log.with_name, **log.to_resume()}

    def _wait(self, there: Json) -> WorkloadWait:
        metadata, owner = there["metadata"], self.owner
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
