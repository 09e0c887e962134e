"""GangAttempt: one gang of a task's try: its Job is created, waited for, collected and deleted, in this order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.namespaces import check_namespace
from airflow_gpu_provider.cluster.nodes import machine_of
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.scaling.apply.open_pool import open_pool
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.life.collect import read_result, result_of_gone
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN
from airflow_gpu_provider.training.life.object_attempt import ObjectAttempt
from airflow_gpu_provider.training.life.objects import GangJobs, Workload
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.task_cluster import TaskCluster
from airflow_gpu_provider.training.place.indexed_job import indexed_job
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.first_failure import of_rank
from airflow_gpu_provider.training.wait.gang_wait import GangSnapshot, GangWait
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome
from airflow_gpu_provider.training.wait.workload_state import JobState, rank_of
from airflow_gpu_provider.training.watch.object_following import GangFollowing

_log = logging.getLogger(__name__)


class GangAttempt(ObjectAttempt):
    """The life of one gang. `pod` is the template of its pods; it has the Job's name, and no uid."""

    following = GangFollowing()

    def _objects_by(self, api: ApiClient) -> GangJobs:
        return GangJobs(api)

    @property
    def what(self) -> str:
        return f"{super().what} of {self._task.nodes} pods" if self._workload else super().what

    # -- its demand ------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Ownership:
        """The owner; a gang that no demand covers has its own Lease, so that its nodes come together."""
        owner = super().owner
        if not self.owns_demand:
            return owner
        return replace(owner, key=owner.key.of_task(owner.task_id, owner.map_index))

    @property
    def owns_demand(self) -> bool:
        """Whether no block's demand covers it. In a Kueue queue it has no demand; once admitted, its pods do."""
        return not (self.deadlines.is_covered or self._task.placement.queue)

    def _want_nodes(self) -> None:
        """Write the gang's own demand: without it, its pods would get their nodes one by one."""
        log, pool = self._task.log, self._cluster.pool
        reconciler = open_pool(pool, owner=self.owner.writer, holder=self._task.holder, say=log.info)
        nodes, until = self._task.nodes, self.deadlines.of_pod(self._cluster.clock.now())
        outcome = reconciler.want(self.demand_key, nodes, until, gang=nodes)
        for line in outcome.said:
            log.info("%s", line)

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        request = self._task.build()
        if self.owns_demand:
            check_namespace(self._cluster.api, request.metadata.namespace, creates_pods=False)
            call_with_retries(self._want_nodes, within=CREATE_WITHIN, say=self._task.log.warning)
        self._task.create(request)
        assert self._workload is not None
        meta = self._workload["metadata"]
        self._task.push("job_name", meta["name"])
        self._task.push("pod_namespace", meta["namespace"])

    def create(self, request: V1Pod) -> V1Pod:
        """Create the Job that runs the pod on each node, unless the try has done so; earlier ones are ended first."""
        body = indexed_job(
            self._cluster.api.sanitize_for_serialization(request),
            nodes=self._task.nodes,
            gpus=self._task.placement.gpus,
            base_container=self._cluster.base_container,
        )
        self._set_pod(request)
        self._find_or_create(body)
        return request

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> dict[str, Any] | None:
        """Return what the triggerer streams of all ranks' logs."""
        wanted = self._task.pod_log.to_stream(self.pod, self._cluster.api)
        return None if wanted is None else {**wanted, "ranks": self._task.log_ranks}

    def wait(self) -> GangWait:
        assert self._workload is not None
        meta = self._workload["metadata"]
        return GangWait(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            nodes=self._task.nodes,
            base_container=self._cluster.base_container,
            **self._limits(parse_time(meta.get("creationTimestamp"))),
            hang_seconds=self._task.hang_seconds,
            queue=self._task.placement.queue,
        )

    # -- its end ---------------------------------------------------------------------------------------------

    def _listed(self, watched: WaitOutcome) -> list[Workload]:
        meta = {"name": watched.name, "namespace": watched.namespace, "uid": watched.uid}
        return self._objects.pods_of({"metadata": meta})

    def _rank_of(self, pod: Json) -> int | None:
        return rank_of(pod)

    def _base_of(self, pod: Json) -> str:
        return self._cluster.base_container

    def _standing(self, states: Mapping[Any, PodState]) -> Progress | None:
        if self._workload is None:
            return None
        ranks = {rank: PodSnapshot(pod=state) for rank, state in states.items()}
        snapshot = GangSnapshot(job=JobState.of_job(self._workload), ranks=ranks)
        return self.wait().step(snapshot, self._cluster.now())

    def _end(self, watched: WaitOutcome, states: Mapping[Any, PodState], setbacks: Setbacks) -> GpuError | None:
        error = super()._end(watched, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if type(error) is PodFailed and rank is not None:
            return lost_peer(states, rank, self._cluster) or error
        return error

    def _result(
        self, pods: Mapping[Any, V1Pod], states: Mapping[Any, PodState], error: GpuError | None, watched: WaitOutcome
    ) -> tuple[Any, GpuError | None]:
        """Return rank 0's result, and how the gang ended."""
        if not self._task.has_result:
            return None, error
        pod = pods.get(0)
        if pod is None:
            return (result_of_gone(watched) if error is None else None), error
        own, extract = self._of_pod(watched, pod), self._task.extract_result
        return read_result(pod, states[0], error, own, cluster=self._cluster, extract=extract)


def lost_peer(states: Mapping[int, PodState], failed: int, cluster: TaskCluster) -> GpuError | None:
    """Return the preemption of a rank whose machine the cloud has ended; None if no peer of `failed` lost its machine.

    A spot machine may be gone minutes before Kubernetes reports it on the node, and its peers fail on a broken
    connection within a second. So the cloud is asked about the machines of the ranks that have not succeeded.

    Args:
        states: Each rank's pod.
        failed: The rank that has failed by itself, on its own machine.
        cluster: Where they run.
    """

    def preempted(rank: int) -> GpuError | None:
        pod = states[rank]
        machine = machine_of(cluster.api, pod.node) if pod.node else ""
        end = cluster.hook.platform.machine_end(machine) if machine else None
        if end is None:
            return None
        what = (
            f"Pod {pod.name} was preempted: its machine {machine} was terminated ({end.why}) before the pod had"
            " finished."
        )
        fix = "Retry the task: the next try waits for new capacity."
        return of_rank(PodPreempted(what, fix, pod=pod.name, node=pod.node, machine=machine), rank)

    try:
        found = in_parallel(
            preempted, [rank for rank in sorted(states) if rank != failed and not _is_well(states[rank])]
        )
    except GpuError as error:
        _log.warning("What became of the other ranks' machines is not known: %s", error)
        return None
    return next((error for error in found if error is not None), None)


def _is_well(pod: PodState) -> bool:
    end = end_of(pod)
    return end is not None and end.error is None
