"""ObjectAttempt: one attempt of a task's try whose pods belong to one object, and are deleted with it.

GangAttempt is that of a gang, whose Job this package makes; WorkloadAttempt that of a manifest, which it places.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Generic, cast

from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api.access_review import check_namespace
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import LOST, EndUnknown, GpuError, PodFailed
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries
from airflow_gpu_provider.training.life.collect import explained, read_result, result_of_gone
from airflow_gpu_provider.training.life.diagnosis import lost_peer
from airflow_gpu_provider.training.life.host import PodHost, WorkloadHost
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.placing import check_pods
from airflow_gpu_provider.training.life.store import TaskGangs, TaskObjects, TaskWorkloads
from airflow_gpu_provider.training.life.task_attempt import CREATE_WITHIN, TaskAttempt, unless_it_passes
from airflow_gpu_provider.training.log.object_logs import EACH, shown_as
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.indexed_job import indexed_job
from airflow_gpu_provider.training.place.kinds import Manifest, WorkloadKind, kind_of
from airflow_gpu_provider.training.place.manifest import place_workload, queue_in, training_pods
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.object_wait import ObjectWait, R, of_rank
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait
from airflow_gpu_provider.training.watch.watch_loop import read_wait

_RELEASE_WITHIN = timedelta(minutes=1)


class ObjectAttempt(TaskAttempt, Generic[R]):
    """The life of one object and its pods."""

    _uids: frozenset[str] = frozenset()

    @abstractmethod
    def wait(self) -> ObjectWait[R]: ...

    @property
    def uids(self) -> set[str]:
        return {*self._uids}

    def read_again(self, watched: WaitOutcome) -> None:
        self.there = self._objects.read(watched.name, watched.namespace, uid=watched.uid) or self.there
        for pod in [*self._newest(self._wait_of(watched)).values()][:1]:
            self._show(pod)

    def has_succeeded(self) -> bool:
        wait = self.wait()
        assert self.there is not None
        seen = wait.standing(self.there, self._states(self._newest(wait), wait), self._cluster.now())
        return seen.done and seen.error is None

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> object:
        """Collect the object: all pods' logs and the result are read before it is deleted."""
        wait = self._wait_of(watched)
        self.there = self._objects.read(watched.name, watched.namespace, uid=watched.uid)
        raw = self._newest(wait)
        states = self._states(raw, wait)
        if raw:
            self._show(next(iter(raw.values())))
        error = self._end(watched, wait, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if error is not None and rank is not None:
            error = self._explained(error, rank, states.get(rank), watched)
        write_rest(
            self._run.pod_log,
            raw,
            states,
            error,
            ranks=self._settings.log_ranks,
            api=self._cluster.api,
            setbacks=setbacks,
        )
        result, error = self._result(raw, states, error, watched)
        self._cluster.gpu_health.take_end(error, self._identity.key)
        self._tell(watched, raw.values())
        self._release(succeeded=error is None)
        if error is not None:
            self._push_result_of_failed(result)
            if error.details.get("exit_code") in self._settings.skips:
                raise AirflowSkipException(f"{error.what} Skipping.")
            raise error
        return result

    def release_uncollected(self) -> None:
        """Delete the object if it is known and not deleted yet."""
        if self.there is not None and self.there["metadata"].get("uid") and not self.is_released:
            self._release(succeeded=False)

    def _wait_of(self, watched: WaitOutcome) -> ObjectWait[R]:
        """Return the wait that is over, or that one would do now for what was adopted."""
        if not watched.wait:
            return self.wait()
        return cast("ObjectWait[R]", read_wait(watched.kind, watched.wait))  # it is this attempt's own

    def _states(self, pods: Mapping[R, Json], wait: ObjectWait[R]) -> dict[R, PodState]:
        return {rank: PodState.parse(pod, wait.main_container(pod)) for rank, pod in pods.items()}

    def _newest(self, wait: ObjectWait[R]) -> dict[R, Json]:
        """Return the newest pod of each rank, as it is now, the lowest rank first."""
        listed = self._cluster.pods.of_attempt(wait.namespace, self._identity)
        self._uids = frozenset(pod["metadata"]["uid"] for pod in listed)
        in_order = sorted(listed, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        found = {rank: pod for pod in in_order if (rank := wait.rank_of(pod)) is not None}
        return dict(sorted(found.items(), key=lambda item: item[0]))

    def _end(
        self, watched: WaitOutcome, wait: ObjectWait[R], states: Mapping[R, PodState], setbacks: Setbacks
    ) -> GpuError | None:
        """Return how it ended: as the watchers saw it, otherwise as it and its pods say now."""
        if watched.saw_end:
            return watched.error
        seen = wait.standing(self.there, states, self._cluster.now()) if self.there is not None else None
        if seen is not None and (seen.done or seen.error is not None):
            return seen.error
        return unless_it_passes(watched, setbacks)

    def _explained(self, error: GpuError, rank: R, state: PodState | None, watched: WaitOutcome) -> GpuError | None:
        """Return a rank's error, explained by its machine and its last log lines."""
        base = state.base.name if state is not None and state.base is not None else ""
        own = replace(watched, name=state.name) if state is not None else watched
        found = explained(error, own, state, base, self._cluster)
        found = self._settings.preemptions.end(found, state.node if state is not None else None)
        return of_rank(found, rank) if found is not None else None

    def _result(
        self, pods: Mapping[R, Json], states: Mapping[R, PodState], error: GpuError | None, watched: WaitOutcome
    ) -> tuple[object, GpuError | None]:
        """Return the result, and how it ended. Default: no result."""
        return None, error

    def _release(self, *, succeeded: bool) -> None:
        """Release the object; an error is only logged, since how it ended is what matters."""
        self.is_released = True
        if self.there is None:
            return
        release = partial(self._delete_or_keep, self.there, succeeded=succeeded)
        try:
            call_with_retries(release, within=_RELEASE_WITHIN, report=self.log.warning)
        except GpuError as error:
            self.log.error("%s could not be deleted and keeps running until its deadline: %s", self.what, error)

    def _delete_or_keep(self, there: Json, *, succeeded: bool) -> None:
        """Delete the object with all its pods, or keep those that have ended, as on_finish_action says."""
        own = self._cluster.pods
        pods = own.of_attempt(there["metadata"]["namespace"], self._identity)
        own.note_use(pods)
        if self._settings.keeps(succeeded=succeeded):
            self._objects.end_pods(there)
            self._objects.mark_collected([there])
            own.mark_collected(pods)
        else:
            self._objects.delete(there)


def write_rest(
    log: TaskLog,
    pods: Mapping[R, Json],
    states: Mapping[R, PodState],
    error: GpuError | None,
    *,
    ranks: Sequence[int] | None,
    api: ApiClient,
    setbacks: Setbacks,
) -> None:
    """Write the part of each rank's log that was not followed, as TaskLog.write_rest does for one pod.

    How far each is written is kept by pod name. `error` is how the whole ended: lines that its rank's own log may lack
    because of that are left out. `ranks` are those whose logs are wanted; None for all.

    Raises:
        GpuError: A log could not be read, but may be later.
    """
    positions = dict(log.followed.get("positions") or {})
    may_repeat = log.followed.get("may_repeat")
    for rank, pod in pods.items():
        if ranks is not None and rank not in ranks:
            continue
        state = states[rank]
        name = state.name
        own = replace(
            log,
            shown_as=partial(shown_as, rank=rank, base=state.base.name if state.base else ""),
            followed={"positions": positions.get(name) or {}, "may_repeat": may_repeat},
        )
        is_failed_one = error is not None and error.details.get("rank") == rank
        try:
            own.write_rest(pod, state, error if is_failed_one else None, api=api, setbacks=setbacks)
        finally:
            positions[name] = own.followed.get("positions") or {}
            log.followed = {**log.followed, "positions": positions}
    log.followed = {"positions": positions, "may_repeat": False}


class WorkloadAttempt(ObjectAttempt[str]):
    """The life of one workload. The operator has it as written by its author."""

    _host: WorkloadHost
    _kind_in_words = "workload"

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._find_or_create(self._request())
        self.tell_name()

    @property
    def namespace(self) -> str:
        return str(self._host.named_manifest["metadata"]["namespace"])

    def tell_name(self) -> None:
        self._host.push("workload_name", self._meta["name"])
        self._host.push("pod_namespace", self._meta["namespace"])

    def _request(self) -> Manifest:
        """Return what to create: the manifest, checked and placed; transient errors are tolerated for minutes."""

        def once() -> Manifest:
            manifest = self._host.named_manifest
            self._cluster.pool.check_nodes_come(nodes=1, gpus=0, queue=queue_in(manifest))
            check_pods(self._run, training_pods(manifest), is_wanted=lambda: self.deadlines.is_wanted)
            return place_workload(manifest, self._placement(self.namespace))

        return call_with_retries(once, within=CREATE_WITHIN, report=self.log.warning)

    @property
    def _kind(self) -> WorkloadKind:
        return kind_of(self._host.named_manifest)

    def _words(self, there: Json) -> str:
        return f"{self._kind.kind} {there['metadata']['name']}"

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

    def wait(self) -> WorkloadWait:
        owner = self.owner
        return WorkloadWait(
            kind=self._kind.kind,
            task=owner.task,
            try_id=owner.try_id,
            attempt=owner.attempt,
            queue=(self._meta.get("labels") or {}).get(QUEUE_LABEL, ""),
            **self._of_wait(),
        )

    def why_not_again(self, error: GpuError) -> str:
        """Return why a workload that vanished is not run again by itself: its ttl deletes one that has finished."""
        is_its_own = isinstance(error, EndUnknown) and "rank" not in error.details
        return "it may have finished" if is_its_own else ""


class GangAttempt(ObjectAttempt[int]):
    """The life of one gang."""

    _host: PodHost
    _kind_in_words = "Job"
    _was_covered: bool | None = None
    """Whether a block's demand covered it, as the wait for it elsewhere says; None before one."""

    def _objects_by(self, api: ApiClient) -> TaskObjects:
        return TaskGangs(api)

    @property
    def what(self) -> str:
        return f"{super().what} of {self._settings.nodes} pods" if self.there else super().what

    # -- its demand ------------------------------------------------------------------------------------------

    def adopt(self, watched: WaitOutcome) -> None:
        super().adopt(watched)
        self._was_covered = watched.wait["is_covered"] if watched.wait else None

    @property
    def owner(self) -> Ownership:
        """The owner; a gang that no demand covers has its own Lease, so that its nodes come together."""
        owner = super().owner
        if not self.owns_demand:
            return owner
        return replace(owner, key=owner.key.of_task(owner.task_id, owner.map_index, owner.iteration))

    @property
    def owns_demand(self) -> bool:
        """Whether no block's demand covers it. In a Kueue queue it has no demand; once admitted, its pods do."""
        is_covered = self.deadlines.is_covered if self._was_covered is None else self._was_covered
        return not (is_covered or self._settings.placement.queue)

    def _want_nodes(self) -> None:
        """Write the gang's own demand: without it, its pods would get their nodes one by one."""
        log, pool = self.log, self._cluster.pool
        reconciler = open_pool(pool, owner=self.owner.writer, holder=self._run.holder, report=log.info)
        nodes, until = self._settings.nodes, self.deadlines.of_pod(self._cluster.clock.now())
        listed = reconciler.platform.list_prices()
        outcome = reconciler.want(self.owner.key, nodes, until, gang=nodes, listed=listed)
        for line in outcome.log_lines:
            log.info("%s", line)

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        unplaced = self._host.unplaced_pod()
        template = self.placed(unplaced)
        self.pod = self._cluster.api.sanitize_for_serialization(template)
        self._host.show_pod(template)
        placement = self._settings.placement
        if self.owns_demand:
            check_namespace(self._cluster.api, self.pod["metadata"]["namespace"], creates_pods=False)
            call_with_retries(self._want_nodes, within=CREATE_WITHIN, report=self.log.warning)
        job = indexed_job(
            self.pod,
            nodes=self._settings.nodes,
            gpus=placement.gpus,
            base_container=placement.base_container,
            own_deadline=unplaced.spec.active_deadline_seconds,
        )
        self._find_or_create(job)
        self.tell_name()

    @property
    def namespace(self) -> str:
        return str(self._host.unplaced_pod().metadata.namespace)

    def tell_name(self) -> None:
        self._host.push("job_name", self._meta["name"])
        self._host.push("pod_namespace", self._meta["namespace"])

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> Json | None:
        """Return what the triggerer streams of all ranks' logs."""
        wanted = self._run.pod_log.to_stream(self.pod)
        return None if wanted is None else {**wanted, "ranks": self._settings.log_ranks}

    def wait(self) -> GangWait:
        return GangWait(
            nodes=self._settings.nodes,
            base_container=self._settings.placement.base_container,
            queue=self._settings.placement.queue,
            **self._of_wait(),
        )

    # -- its end ---------------------------------------------------------------------------------------------

    def _end(
        self, watched: WaitOutcome, wait: ObjectWait[int], states: Mapping[int, PodState], setbacks: Setbacks
    ) -> GpuError | None:
        error = super()._end(watched, wait, states, setbacks)
        if isinstance(error, PodFailed) and not isinstance(error, LOST):
            error = self._request(states) or error
        rank = error.details.get("rank") if error is not None else None
        if type(error) is PodFailed and rank is not None:
            return lost_peer(states, rank, self._cluster) or error
        return error

    def _request(self, states: Mapping[int, PodState]) -> GpuError | None:
        """Return the end of the rank that has asked for another node, whichever failed first: its peers lost it."""
        codes = self._settings.preemptions.on_exit_codes
        for rank, state in states.items():
            ended = end_of(state) if state.base is not None and state.base.exit_code in codes else None
            if ended is not None and ended.error is not None:
                return of_rank(ended.error, rank)
        return None

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
        return read_result(pod, states[0], error, own, base=base, cluster=self._cluster, extract=extract)
