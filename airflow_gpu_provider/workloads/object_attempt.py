"""ObjectAttempt: one attempt of a task's try whose pods belong to one object, and are deleted with it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import ApiClient, ApiException, V1Pod
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.usage import record_pods
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.collect import explained
from airflow_gpu_provider.pods.creation import CREATE_WITHIN
from airflow_gpu_provider.pods.task_attempt import Found, TaskAttempt
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.setbacks import Setbacks
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.workloads.first_failure import Rank, of_rank
from airflow_gpu_provider.workloads.logs import shown_as
from airflow_gpu_provider.workloads.objects import Workload, WorkloadObjects, attempt_of, is_of_attempt, newest_of_try


class ObjectAttempt(TaskAttempt):
    """The life of one object and its pods."""

    _workload: Workload | None = None
    _uids: frozenset[str] = frozenset()

    @abstractmethod
    def _objects_by(self, api: ApiClient) -> WorkloadObjects:
        """Return what reads and writes such objects."""

    @abstractmethod
    def _listed(self, watched: Watched) -> list[Workload]:
        """Return the attempt's pods, as JSON, whether the object is still there or not."""

    @abstractmethod
    def _rank_of(self, pod: Json) -> Rank | None:
        """Return what the pod is known by; None for one that does not count."""

    @abstractmethod
    def _base_of(self, pod: Json) -> str:
        """Return the name of the container whose end is the pod's."""

    @abstractmethod
    def _standing(self, states: Mapping[Any, PodState]) -> Progress | None:
        """Return how the object and its pods stand now; None where the object is gone."""

    @cached_property
    def _objects(self) -> WorkloadObjects:
        return self._objects_by(self._cluster.api)

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        return self._words(self._workload) if self._workload else f"no {self._objects.kind.kind}"

    @property
    def uids(self) -> set[str]:
        """The uids of its pods, as they were last listed."""
        return {*self._uids}

    def _words(self, workload: Workload) -> str:
        return f"{self._objects.kind.kind} {workload['metadata']['name']}"

    def take_up(self, watched: Watched) -> None:
        """Know the object that was waited for elsewhere by its name."""
        self._workload = {"metadata": {"name": watched.name, "namespace": watched.namespace, "uid": watched.uid}}

    # -- what is there already -------------------------------------------------------------------------------

    def newest_of_try(self, namespace: str) -> Found | None:
        """Return this try's latest object, if it is there."""
        found = self._objects.newest_of_try(namespace, self.owner)
        if found is None:
            return None
        return Found(name=found["metadata"]["name"], uid=found["metadata"]["uid"], number=attempt_of(found))

    def delete_left(self, namespace: str) -> set[str]:
        """Delete the objects that tries of the task have left; return the uids of their pods."""
        pods = self._cluster.pods.of_task(namespace, self.owner)
        for each in self._objects.of_task(namespace, self.owner):
            self._objects.delete(each)
        return {pod.metadata.uid for pod in pods}

    # -- creation --------------------------------------------------------------------------------------------

    def _find_or_create(self, request: Workload) -> Workload:
        """Return this try's object, created now unless the try was interrupted before; what is earlier ends first."""

        def once() -> Workload:
            return self._found(request["metadata"]["namespace"]) or self._made(request)

        workload = self._workload = call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)
        self.record = replace(self.record, number=attempt_of(workload))
        return workload

    def _found(self, namespace: str) -> Workload | None:
        """Return what this try has created before, if it is there; all that is earlier is deleted."""
        owner, log = self.owner, self._task.log
        there = self._objects.of_task(namespace, owner)
        newest = newest_of_try(there, owner) if self._task.reattaches else None
        current = newest if newest is not None and attempt_of(newest) >= owner.attempt else None
        for each in there:
            if current is None or each["metadata"]["uid"] != current["metadata"]["uid"]:
                log.info("Deleting %s of an earlier try or attempt.", self._words(each))
                self._objects.delete(each)
        if current is not None:
            log.info("Goes on with %s, which this try has created before.", self._words(current))
            self._objects.reattach(current)
        return current

    def _made(self, request: Workload) -> Workload:
        namespace, log = request["metadata"]["namespace"], self._task.log
        self._cluster.pods.await_end(self._cluster.pods.of_task(namespace, self.owner), self._cluster.clock, log.info)
        self._workload = request  # from now on it may be there, whether or not the answer arrives
        made = self._objects.create(request, self.owner)
        is_suspended = self._objects.kind.is_suspended(made)
        log.info("Created %s in %s%s.", self._words(made), namespace, ", suspended" if is_suspended else "")
        return made

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: Watched, setbacks: Setbacks) -> Any:
        """Do so for the object: all pods' logs are read, and the result, before it is deleted."""
        self._workload = self._objects.read(watched.name, watched.namespace, uid=watched.uid or None)
        raw = self._newest(watched)
        states = {rank: PodState.parse(pod, self._base_of(pod)) for rank, pod in raw.items()}
        pods = {rank: PodGenerator.deserialize_model_dict(pod) for rank, pod in raw.items()}
        error = self._end(watched, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if error is not None and rank is not None:
            error = self._explained(error, rank, raw.get(rank), pods.get(rank), watched)
        self._write_logs(raw, pods, states, error, setbacks)
        result, error = self._result(pods, states, error, watched)
        self._tell_timeline(watched.timeline)
        self._tell_use(watched.use, raw.values())
        self._release(succeeded=error is None)
        if error is not None:
            if error.details.get("exit_code") in self._task.skips:
                raise AirflowSkipException(f"{error.what} Skipping.")
            raise error
        return result

    def let_go(self) -> None:
        """Delete the object where it is known and that has not been done."""
        if self._workload is not None and self._workload["metadata"].get("uid") and not self._is_released:
            self._release(succeeded=False)

    def kill(self) -> None:
        """Delete the object, with a client of its own: the interrupted code may hold locks; failures are logged."""
        if self._workload is None:
            return
        meta = self._workload["metadata"]
        try:
            objects = self._objects_by(self._cluster.hook.new_client().api_client)
            # Where the answer to its creation has not come, another task's may have the name.
            there = self._workload if meta.get("uid") else objects.read(meta["name"], meta["namespace"], uid=None)
            if there is not None and (meta.get("uid") or is_of_attempt(there, self.owner)):
                objects.delete(there)
        except GpuError as error:
            self._task.log.error("%s could not be deleted: %s", self._words(self._workload), error)

    def _newest(self, watched: Watched) -> dict[Rank, Workload]:
        """Return the newest pod of each rank, as it is now."""
        listed = self._listed(watched)
        self._uids = frozenset(pod["metadata"]["uid"] for pod in listed)
        in_order = sorted(listed, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        return {rank: pod for pod in in_order if (rank := self._rank_of(pod)) is not None}

    def _end(self, watched: Watched, states: Mapping[Rank, PodState], setbacks: Setbacks) -> GpuError | None:
        """Return how it ended: as those who watched it saw, or else as it and its pods say now."""
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
        self, error: GpuError, rank: Rank, raw: Workload | None, pod: V1Pod | None, watched: Watched
    ) -> GpuError | None:
        """Return a rank's error as its machine and its last lines explain it."""
        cluster: TaskCluster = self._cluster
        if raw is not None:
            cluster = replace(cluster, base_container=self._base_of(raw))
        found = explained(error, self._of_pod(watched, pod), pod, cluster)
        return of_rank(found, rank) if found is not None else None

    def _of_pod(self, watched: Watched, pod: V1Pod | None) -> Watched:
        return replace(watched, name=pod.metadata.name) if pod is not None else watched

    def _write_logs(
        self,
        raw: Mapping[Rank, Workload],
        pods: Mapping[Rank, V1Pod],
        states: Mapping[Rank, PodState],
        error: GpuError | None,
        setbacks: Setbacks,
    ) -> None:
        whole = self._task.pod_log
        positions = dict(whole.followed.get("positions") or {})
        for rank in sorted(pods, key=str):
            name = pods[rank].metadata.name
            followed = {"positions": positions.get(name) or {}, "may_repeat": whole.followed.get("may_repeat")}
            log = replace(
                whole, shown_as=partial(shown_as, rank=rank, base=self._base_of(raw[rank])), followed=followed
            )
            own = error if error is not None and error.details.get("rank") == rank else None
            try:
                log.write_rest(pods[rank], states[rank], own, api=self._cluster.api, setbacks=setbacks)
            finally:
                positions[name] = log.followed.get("positions") or {}
                whole.followed = {**whole.followed, "positions": positions}
        whole.followed = {"positions": positions, "may_repeat": False}

    def _result(
        self, pods: Mapping[Any, V1Pod], states: Mapping[Any, PodState], error: GpuError | None, watched: Watched
    ) -> tuple[Any, GpuError | None]:
        """Return the result, and how it ended."""
        return None, error

    def _release(self, *, succeeded: bool) -> None:
        """Delete the object and with it all pods, or leave those that have ended, as on_finish_action says."""
        self._is_released = True
        if self._workload is None:
            return
        pods = self._objects.pods_of(self._workload)
        self._note_use(pods)
        if self._task.keeps(succeeded):
            self._objects.end_pods(self._workload)
            for pod in pods:
                self._objects.mark_collected(pod)
        else:
            self._objects.delete(self._workload)

    def _note_use(self, pods: Iterable[Workload]) -> None:
        """Write down when the pods ran, for the run's bill."""
        try:
            record_pods(self._cluster.api, [Pod.parse(pod) for pod in pods], self._cluster.clock.now())
        except (GpuError, ApiException, HTTPError) as error:
            self._task.log.warning("When its pods ran could not be written down for the run's bill: %s", error)
