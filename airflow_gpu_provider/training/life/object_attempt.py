"""ObjectAttempt: one attempt of a task's try whose pods belong to one object, and are deleted with it."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.pods import mark_collected
from airflow_gpu_provider.cost.ledger import record_pods
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.life.collect import explained
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN, check_exec
from airflow_gpu_provider.training.life.objects import (
    Workload,
    WorkloadObjects,
    attempt_of,
    is_of_attempt,
    newest_of_try,
)
from airflow_gpu_provider.training.life.task_attempt import Found, TaskAttempt
from airflow_gpu_provider.training.life.task_cluster import TaskCluster
from airflow_gpu_provider.training.log.object_logs import shown_as
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.wait.first_failure import Rank, of_rank
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome

_RELEASE_WITHIN = timedelta(minutes=1)

_log = logging.getLogger(__name__)


class ObjectAttempt(TaskAttempt):
    """The life of one object and its pods."""

    _workload: Workload | None = None
    _uids: frozenset[str] = frozenset()

    @abstractmethod
    def _objects_by(self, api: ApiClient) -> WorkloadObjects:
        """Return the reader and writer of such objects."""

    @abstractmethod
    def _listed(self, watched: WaitOutcome) -> list[Workload]:
        """Return the attempt's pods, as JSON, whether or not the object still exists."""

    @abstractmethod
    def _rank_of(self, pod: Json) -> Rank | None:
        """Return the pod's rank or name; None for a pod that does not count."""

    @abstractmethod
    def _base_of(self, pod: Json) -> str:
        """Return the name of the main container, whose end counts as the pod's."""

    @abstractmethod
    def _standing(self, states: Mapping[Any, PodState]) -> Progress | None:
        """Return the present state of the object and its pods; None if the object is gone."""

    @cached_property
    def _objects(self) -> WorkloadObjects:
        return self._objects_by(self._cluster.api)

    @property
    def what(self) -> str:
        return self._words(self._workload) if self._workload else f"no {self._objects.kind.kind}"

    @property
    def uids(self) -> set[str]:
        return {*self._uids}

    def _words(self, workload: Workload) -> str:
        return f"{self._objects.kind.kind} {workload['metadata']['name']}"

    def adopt(self, watched: WaitOutcome) -> None:
        self._workload = {"metadata": {"name": watched.name, "namespace": watched.namespace, "uid": watched.uid}}

    # -- what is there already -------------------------------------------------------------------------------

    def newest_of_try(self, namespace: str) -> Found | None:
        found = self._objects.newest_of_try(namespace, self.owner)
        if found is None:
            return None
        return Found(name=found["metadata"]["name"], uid=found["metadata"]["uid"], number=attempt_of(found))

    def delete_left(self, namespace: str) -> set[str]:
        pods = self._cluster.pods.of_task(namespace, self.owner)
        for each in self._objects.of_task(namespace, self.owner):
            self._objects.delete(each)
        return {pod.metadata.uid for pod in pods}

    # -- creation --------------------------------------------------------------------------------------------

    def _find_or_create(self, request: Workload) -> Workload:
        """Return this try's object, created now unless an interrupted try did so; earlier ones are ended first."""

        def once() -> Workload:
            return self._found(request["metadata"]["namespace"]) or self._made(request)

        workload = self._workload = call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)
        self.record = replace(self.record, number=attempt_of(workload))
        return workload

    def _found(self, namespace: str) -> Workload | None:
        """Return what this try has already created, if it exists; everything earlier is deleted."""
        owner, log = self.owner, self._task.log
        there = self._objects.of_task(namespace, owner)
        newest = newest_of_try(there, owner) if self._task.reattaches else None
        current = newest if newest is not None and attempt_of(newest) >= owner.attempt else None
        for each in there:
            if current is None or each["metadata"]["uid"] != current["metadata"]["uid"]:
                log.info("Deleting %s of an earlier try or attempt.", self._words(each))
                self._objects.delete(each)
        if current is not None:
            log.info("Continuing with %s, which this try has already created.", self._words(current))
            self._objects.reattach(current)
        return current

    def _made(self, request: Workload) -> Workload:
        namespace, log = request["metadata"]["namespace"], self._task.log
        check_exec(self._task, namespace)
        self._cluster.pods.await_end(self._cluster.pods.of_task(namespace, self.owner), self._cluster.clock, log.info)
        self._workload = request  # from now on it may exist, whether or not the answer arrives
        made = self._objects.create(request, self.owner)
        is_suspended = self._objects.kind.is_suspended(made)
        self._workload = made
        log.info("Created %s in %s%s.", self.what, namespace, ", suspended" if is_suspended else "")
        return made

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> Any:
        """Collect the object: all pods' logs and the result are read before it is deleted."""
        self._workload = self._objects.read(watched.name, watched.namespace, uid=watched.uid or None)
        raw = self._newest(watched)
        states = {rank: PodState.parse(pod, self._base_of(pod)) for rank, pod in raw.items()}
        pods = {rank: PodGenerator.deserialize_model_dict(pod) for rank, pod in raw.items()}
        if pods:
            self._set_pod(next(iter(pods.values())))
        error = self._end(watched, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if error is not None and rank is not None:
            error = self._explained(error, rank, raw.get(rank), pods.get(rank), watched)
        write_rest(
            self._task.pod_log,
            {rank: (pods[rank], states[rank], self._base_of(raw[rank])) for rank in raw},
            error,
            ranks=self._task.log_ranks,
            api=self._cluster.api,
            setbacks=setbacks,
        )
        result, error = self._result(pods, states, error, watched)
        self._tell_timeline(watched.timeline)
        self._tell_use(watched.use, raw.values())
        self._release(succeeded=error is None)
        if error is not None:
            self._push_result_of_failed(result)
            if error.details.get("exit_code") in self._task.skips:
                raise AirflowSkipException(f"{error.what} Skipping.")
            raise error
        return result

    def release_uncollected(self) -> None:
        """Delete the object if it is known and not deleted yet."""
        if self._workload is not None and self._workload["metadata"].get("uid") and not self.is_released:
            self._release(succeeded=False)

    def kill(self) -> None:
        """Delete the object, with a client of its own: the interrupted code may hold locks; failures are logged."""
        if self._workload is None:
            return
        meta = self._workload["metadata"]
        try:
            objects = self._objects_by(self._cluster.hook.new_client().api_client)
            # If the answer to its creation has not arrived, another task's object may have the name.
            there = self._workload if meta.get("uid") else objects.read(meta["name"], meta["namespace"], uid=None)
            if there is not None and (meta.get("uid") or is_of_attempt(there, self.owner)):
                objects.delete(there)
        except GpuError as error:
            self._task.log.error("%s could not be deleted: %s", self._words(self._workload), error)

    def _newest(self, watched: WaitOutcome) -> dict[Rank, Workload]:
        """Return the newest pod of each rank, as it is now, the lowest rank first."""
        listed = self._listed(watched)
        self._uids = frozenset(pod["metadata"]["uid"] for pod in listed)
        in_order = sorted(listed, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        found: dict[Any, Workload] = {rank: pod for pod in in_order if (rank := self._rank_of(pod)) is not None}
        return dict(sorted(found.items(), key=lambda item: item[0]))

    def _end(self, watched: WaitOutcome, states: Mapping[Rank, PodState], setbacks: Setbacks) -> GpuError | None:
        """Return how it ended: as the watchers saw it, otherwise as it and its pods say now."""
        if watched.saw_end:
            return watched.error
        seen = self._standing(states)
        if seen is not None and (seen.done or seen.error is not None):
            return seen.error
        assert watched.error is not None
        if setbacks.may_pass(watched.error):
            raise watched.error
        return watched.error

    def _explained(
        self, error: GpuError, rank: Rank, raw: Workload | None, pod: V1Pod | None, watched: WaitOutcome
    ) -> GpuError | None:
        """Return a rank's error, explained by its machine and its last log lines."""
        cluster: TaskCluster = self._cluster
        if raw is not None:
            cluster = replace(cluster, base_container=self._base_of(raw))
        found = explained(error, self._of_pod(watched, pod), pod, cluster)
        return of_rank(found, rank) if found is not None else None

    def _of_pod(self, watched: WaitOutcome, pod: V1Pod | None) -> WaitOutcome:
        return replace(watched, name=pod.metadata.name) if pod is not None else watched

    def _result(
        self, pods: Mapping[Any, V1Pod], states: Mapping[Any, PodState], error: GpuError | None, watched: WaitOutcome
    ) -> tuple[Any, GpuError | None]:
        """Return the result, and how it ended. Default: no result."""
        return None, error

    def _release(self, *, succeeded: bool) -> None:
        """Release the object; an error is only logged, since how it ended is what matters."""
        self.is_released = True
        if self._workload is None:
            return
        release = partial(self._delete_or_keep, self._workload, succeeded=succeeded)
        try:
            call_with_retries(release, within=_RELEASE_WITHIN, say=self._task.log.warning)
        except GpuError as error:
            self._task.log.error("%s could not be deleted and keeps running until its deadline: %s", self.what, error)

    def _delete_or_keep(self, workload: Workload, *, succeeded: bool) -> None:
        """Delete the object with all its pods, or keep those that have ended, as on_finish_action says."""
        pods = self._objects.pods_of(workload)
        note_use(pods, self._cluster)
        if self._task.keeps(succeeded):
            self._objects.end_pods(workload)
            for pod in pods:
                mark_collected(self._cluster.api, pod["metadata"]["namespace"], pod["metadata"]["name"])
        else:
            self._objects.delete(workload)


def write_rest(
    log: TaskLog,
    pods: Mapping[Any, tuple[V1Pod, PodState, str]],
    error: GpuError | None,
    *,
    ranks: Sequence[int] | None,
    api: ApiClient,
    setbacks: Setbacks,
) -> None:
    """Write the part of each rank's log that was not followed, as TaskLog.write_rest does for one pod.

    Args:
        log: The task's; how far it is written is kept by pod name.
        pods: Each rank's pod, as it is now, and its main container.
        error: How the whole ended; lines that its rank's own log may lack because of that are left out.
        ranks: The ranks whose logs are wanted; None for all.
        api: The cluster.
        setbacks: As for TaskLog.write_rest.

    Raises:
        GpuError: A log could not be read, but may be later.
    """
    positions = dict(log.followed.get("positions") or {})
    may_repeat = log.followed.get("may_repeat")
    for rank, (pod, state, base) in sorted(pods.items(), key=lambda item: item[0]):
        if ranks is not None and rank not in ranks:
            continue
        name = pod.metadata.name
        own = replace(
            log,
            shown_as=partial(shown_as, rank=rank, base=base),
            followed={"positions": positions.get(name) or {}, "may_repeat": may_repeat},
        )
        is_failed_one = error is not None and error.details.get("rank") == rank
        try:
            own.write_rest(pod, state, error if is_failed_one else None, api=api, setbacks=setbacks)
        finally:
            positions[name] = own.followed.get("positions") or {}
            log.followed = {**log.followed, "positions": positions}
    log.followed = {"positions": positions, "may_repeat": False}


def note_use(pods: Iterable[Json], cluster: TaskCluster) -> None:
    record_pods(lambda: cluster.api, pods, _log.warning, now=cluster.clock.now)
