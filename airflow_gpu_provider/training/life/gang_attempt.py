"""GangAttempt: one gang of a task's try: its Job is created, waited for, collected and deleted, in this order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.access_review import check_namespace
from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.nodes import machine_of
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.scaling.apply.admission import requests_of
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries
from airflow_gpu_provider.training.life.collect import read_result, result_of_gone
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.object_attempt import ObjectAttempt
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import PodHost
from airflow_gpu_provider.training.life.store import TaskGangs, TaskObjects, as_v1
from airflow_gpu_provider.training.place.indexed_job import ask_for_nodes, indexed_job
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.first_failure import of_rank
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.object_wait import ObjectWait
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome

_log = logging.getLogger(__name__)


class GangAttempt(ObjectAttempt[int]):
    """The life of one gang."""

    _host: PodHost

    def _objects_by(self, api: ApiClient) -> TaskObjects:
        return TaskGangs(api)

    @property
    def what(self) -> str:
        return f"{super().what} of {self._settings.nodes} pods" if self.there else super().what

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
        return not (self.deadlines.is_covered or self._settings.placement.queue)

    def _want_nodes(self) -> None:
        """Write the gang's own demand: without it, its pods would get their nodes one by one."""
        log, pool = self.log, self._cluster.pool
        reconciler = open_pool(pool, owner=self.owner.writer, holder=self._run.holder, report=log.info)
        nodes, until = self._settings.nodes, self.deadlines.of_pod(self._cluster.clock.now())
        outcome = reconciler.want(self.demand_key, nodes, until, gang=nodes)
        for line in outcome.log_lines:
            log.info("%s", line)

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        template = self.placed(self._host.unplaced_pod())
        self.pod = self._cluster.api.sanitize_for_serialization(template)
        self._host.show_pod(template)
        placement = self._settings.placement
        if not placement.queue:
            # Where there is no such kind, it would wait for nothing.
            known = partial(requests_of, self._cluster.api, placement.pool)
            call_with_retries(known, within=CREATE_WITHIN, report=self.log.warning)
        if self.owns_demand:
            check_namespace(self._cluster.api, self.pod["metadata"]["namespace"], creates_pods=False)
            call_with_retries(self._want_nodes, within=CREATE_WITHIN, report=self.log.warning)
        job = indexed_job(
            self.pod,
            nodes=self._settings.nodes,
            gpus=placement.gpus,
            base_container=placement.base_container,
        )
        ask_for_nodes(job, placement.pool)
        meta = self._find_or_create(job)["metadata"]
        self._host.push("job_name", meta["name"])
        self._host.push("pod_namespace", meta["namespace"])

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> Json | None:
        """Return what the triggerer streams of all ranks' logs."""
        wanted = self._run.pod_log.to_stream(self.pod)
        return None if wanted is None else {**wanted, "ranks": self._settings.log_ranks}

    def _wait(self, there: Json) -> GangWait:
        meta = there["metadata"]
        return GangWait(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            nodes=self._settings.nodes,
            base_container=self._settings.placement.base_container,
            **self._limits(parse_time(meta.get("creationTimestamp"))),
            queue=self._settings.placement.queue,
        )

    # -- its end ---------------------------------------------------------------------------------------------

    def _end(
        self, watched: WaitOutcome, wait: ObjectWait[int], states: Mapping[int, PodState], setbacks: Setbacks
    ) -> GpuError | None:
        error = super()._end(watched, wait, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if type(error) is PodFailed and rank is not None:
            return lost_peer(states, rank, self._cluster) or error
        return error

    def _result(
        self, pods: Mapping[int, Json], states: Mapping[int, PodState], error: GpuError | None, watched: WaitOutcome
    ) -> tuple[object, GpuError | None]:
        """Return rank 0's result, and how the gang ended."""
        if not self._settings.has_result:
            return None, error
        pod = pods.get(0)
        if pod is None:
            return (result_of_gone(watched) if error is None else None), error
        own, base = replace(watched, name=states[0].name), self._settings.placement.base_container
        extract = self._host.extract_xcom
        return read_result(as_v1(pod), states[0], error, own, base=base, cluster=self._cluster, extract=extract)


def lost_peer(states: Mapping[int, PodState], failed: int, cluster: PoolHook) -> GpuError | None:
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
        end = cluster.platform.machine_end(machine) if machine else None
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
