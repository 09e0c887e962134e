"""GangAttempt: one gang of a task's try: its Job created, waited for, collected and deleted, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.api_errors import mapped
from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.gangs import JOB_LABEL
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, PodFailed
from airflow_gpu_provider.pods.collect import explained, read_result, result_of_gone
from airflow_gpu_provider.pods.creation import CREATE_WITHIN
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.task_attempt import Found, TaskAttempt
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodSnapshot
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.setbacks import Setbacks, persistently
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.workloads.first_failure import of_rank
from airflow_gpu_provider.workloads.gang_wait import GangSnapshot, GangWait
from airflow_gpu_provider.workloads.indexed_job import indexed_job
from airflow_gpu_provider.workloads.job_state import JobState, rank_of
from airflow_gpu_provider.workloads.jobs import GangJobs, Job, attempt_of, is_of_attempt, newest_of_try
from airflow_gpu_provider.workloads.lost_peer import lost_peer
from airflow_gpu_provider.workloads.rest_of_logs import write_rest
from airflow_gpu_provider.workloads.use import note_use
from airflow_gpu_provider.workloads.watch_here import watch_here

_RELEASE_WITHIN = timedelta(minutes=1)


class GangAttempt(TaskAttempt):
    """The life of one gang. `pod` is what its pods are made by; it has the Job's name, and no uid."""

    _job: Job | None = None
    _uids: frozenset[str] = frozenset()

    @cached_property
    def _jobs(self) -> GangJobs:
        return GangJobs(self._cluster.api)

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        return f"Job {self._job['metadata']['name']} of {self._task.nodes} pods" if self._job else "no Job"

    @property
    def uids(self) -> set[str]:
        """The uids of its pods, as they were last listed."""
        return {*self._uids}

    def take_up(self, watched: Watched) -> None:
        """Know the Job that was waited for elsewhere by its name."""
        self._job = {"metadata": {"name": watched.name, "namespace": watched.namespace, "uid": watched.uid}}

    # -- what is there already -------------------------------------------------------------------------------

    def newest_of_try(self, namespace: str) -> Found | None:
        """Return this try's latest Job, if it is there."""
        job = self._jobs.newest_of_try(namespace, self.owner)
        if job is None:
            return None
        return Found(name=job["metadata"]["name"], uid=job["metadata"]["uid"], number=attempt_of(job))

    def delete_left(self, namespace: str) -> set[str]:
        """Delete the Jobs that tries of the task have left; return the uids of their pods."""
        pods = self._cluster.pods.of_task(namespace, self.owner)
        for job in self._jobs.of_task(namespace, self.owner):
            self._jobs.delete(job)
        return {pod.metadata.uid for pod in pods}

    # -- its demand ------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Ownership:
        """Whose it is; a gang that no demand covers is that of a Lease of its own, so that its nodes come together."""
        owner = super().owner
        if not self.owns_demand:
            return owner
        block = f"{owner.key.block}/{owner.task_id}/{owner.map_index}".lstrip("/")
        return replace(owner, key=replace(owner.key, block=block))

    @property
    def owns_demand(self) -> bool:
        """Whether no block's demand covers it. In a queue of Kueue it wants nothing; once admitted, its pods do."""
        return not (self.deadlines.is_covered or self._task.placement.queue)

    def _want_nodes(self) -> None:
        """Write the gang's own demand: single pods of it would have their nodes one by one."""
        log, pool = self._task.log, self._cluster.pool
        reconciler = open_pool(pool, owner=self.owner.writer, holder=self._task.holder, say=log.info)
        nodes, until = self._task.nodes, self.deadlines.of_pod(self._cluster.clock.now())
        outcome = reconciler.want(self.demand_key, nodes, until, gang=nodes)
        for line in outcome.said:
            log.info("%s", line)

    # -- creation --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the Job, and tell Airflow its name."""
        request = self._task.build()
        if self.owns_demand:
            call_with_retries(self._want_nodes, within=CREATE_WITHIN, say=self._task.log.warning)
        self._task.create(request)
        assert self._job is not None
        meta = self._job["metadata"]
        self._task.push("job_name", meta["name"])
        self._task.push("pod_namespace", meta["namespace"])

    def create(self, request: V1Pod) -> V1Pod:
        """Create the Job that runs the pod on each node, unless the try did so before; what is earlier ends first."""
        body = indexed_job(
            self._cluster.api.sanitize_for_serialization(request),
            nodes=self._task.nodes,
            gpus=self._task.placement.gpus,
            base_container=self._cluster.base_container,
        )
        self._set_pod(request)
        self._job = call_with_retries(
            lambda: self._find_or_create(body), within=CREATE_WITHIN, say=self._task.log.warning
        )
        self.record = replace(self.record, number=attempt_of(self._job))
        return request

    def _find_or_create(self, body: Job) -> Job:
        namespace, owner, jobs, log = body["metadata"]["namespace"], self.owner, self._jobs, self._task.log
        there = jobs.of_task(namespace, owner)
        newest = newest_of_try(there, owner) if self._task.reattaches else None
        current = newest if newest is not None and attempt_of(newest) >= owner.attempt else None
        for job in there:
            if current is None or job["metadata"]["uid"] != current["metadata"]["uid"]:
                log.info("Deleting Job %s of an earlier try or attempt.", job["metadata"]["name"])
                jobs.delete(job)
        if current is not None:
            log.info("Goes on with Job %s, which this try has created before.", current["metadata"]["name"])
            jobs.create_service(current)
            return current
        self._cluster.pods.await_end(self._cluster.pods.of_task(namespace, owner), self._cluster.clock, log.info)
        self._job = body
        job = jobs.create(body, owner)
        log.info("Created Job %s/%s for %s pods, suspended.", namespace, job["metadata"]["name"], self._task.nodes)
        return job

    # -- waiting ---------------------------------------------------------------------------------------------

    def to_stream(self) -> dict[str, Any] | None:
        """Return what the triggerer streams of all ranks' logs."""
        wanted = self._task.pod_log.to_stream(self.pod, self._cluster.api)
        return None if wanted is None else {**wanted, "ranks": self._task.log_ranks}

    def wait(self) -> GangWait:
        """Return the wait for the Job."""
        assert self._job is not None
        meta = self._job["metadata"]
        created_at = parse_time(meta.get("creationTimestamp")) or self._cluster.clock.now()
        deadline = self.deadlines.of_pod(created_at)
        self.record = self.record.until(deadline)
        return GangWait(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            nodes=self._task.nodes,
            base_container=self._cluster.base_container,
            started=created_at,
            schedule_seconds=self._task.schedule_seconds,
            start_seconds=self._task.start_seconds,
            deadline=deadline,
            is_covered=self.deadlines.is_covered,
            hang_seconds=self._task.hang_seconds,
            gpus=self._task.gpus,
            queue=self._task.placement.queue,
        )

    def watch_here(self) -> Watched:
        """Wait in this process until the gang has ended, with its ranks' logs."""
        wait = self.wait()
        narrator = Narrator(self._task.log.info, started=wait.started)
        watch = partial(
            watch_here,
            wait,
            self.pod,
            self._cluster,
            self._task.pod_log,
            ranks=self._task.log_ranks,
            owner=self.owner.writer,
            narrator=narrator,
        )
        return self._task.stop.run(persistently(watch, until=wait.deadline, narrator=narrator))

    # -- its end ---------------------------------------------------------------------------------------------

    def collect(self, watched: Watched, setbacks: Setbacks) -> Any:
        """Do so for the gang: all ranks' logs are read, and rank 0's result, before the Job is deleted."""
        self._job = self._jobs.read(watched.name, watched.namespace, uid=watched.uid or None)
        pods = self._pods(watched)
        states = {rank: self._cluster.state(pod) for rank, pod in pods.items()}
        error = self._end(watched, states, setbacks)
        rank = error.details.get("rank") if error is not None else None
        if type(error) is PodFailed and rank is not None:
            error = lost_peer(states, rank, self._cluster) or error
            rank = error.details.get("rank")
        if error is not None and rank is not None:
            pod = pods.get(rank)
            error = explained(error, self._of_pod(watched, pod), pod, self._cluster)
            error = of_rank(error, rank) if error is not None else None
        write_rest(
            self._task.pod_log,
            {rank: (pod, states[rank]) for rank, pod in pods.items()},
            error,
            ranks=self._task.log_ranks,
            cluster=self._cluster,
            setbacks=setbacks,
        )
        result = None
        if self._task.has_result:
            result, error = self._result(pods.get(0), states.get(0), error, watched)
        self._tell_timeline(watched.timeline)
        self._tell_use(watched.use, pods.values())
        self._release(succeeded=error is None)
        if error is not None:
            if result is not None:
                self._task.push("return_value", result)
            if error.details.get("exit_code") in self._task.skips:
                raise AirflowSkipException(f"{error.what} Skipping.")
            raise error
        return result

    def let_go(self) -> None:
        """Delete the Job where it is known and that has not been done."""
        if self._job is not None and self._job["metadata"].get("uid") and not self._is_released:
            self._release(succeeded=False)

    def kill(self) -> None:
        """Delete the Job, with a client of its own: the interrupted code may hold locks; failures are logged."""
        if self._job is None:
            return
        meta = self._job["metadata"]
        try:
            jobs = GangJobs(self._cluster.hook.new_client().api_client)
            # Where the answer to its creation has not come, another task's Job may have the name.
            there = self._job if meta.get("uid") else jobs.read(meta["name"], meta["namespace"], uid=None)
            if there is not None and (meta.get("uid") or is_of_attempt(there, self.owner)):
                jobs.delete(there)
        except GpuError as error:
            self._task.log.error("Job %s could not be deleted: %s", meta["name"], error)

    def _pods(self, watched: Watched) -> dict[int, V1Pod]:
        """Return each rank's newest pod as it is now."""
        found: dict[int, V1Pod] = {}
        for pod in sorted(self._listed(watched), key=lambda pod: pod.metadata.creation_timestamp):
            rank = rank_of({"metadata": {"annotations": pod.metadata.annotations}})
            if rank is not None:
                found[rank] = pod
        if found:
            self._set_pod(found[min(found)])
        return found

    def _listed(self, watched: Watched) -> list[V1Pod]:
        client, selector = self._cluster.client, f"{JOB_LABEL}={watched.name}"
        with mapped("list", "pods"):
            there = client.list_namespaced_pod(watched.namespace, label_selector=selector).items
        pods = [pod for pod in there if _is_owned(pod, watched.uid)]
        self._uids = frozenset(pod.metadata.uid for pod in pods)
        return pods

    def _end(self, watched: Watched, states: Mapping[int, PodState], setbacks: Setbacks) -> GpuError | None:
        """Return how the gang ended: as those who watched it saw, or else as its Job and its pods say now."""
        if watched.saw_end:
            return watched.error
        job = JobState.parse(self._job) if self._job is not None else None
        ranks = {rank: PodSnapshot(pod=state) for rank, state in states.items()}
        snapshot = GangSnapshot(job=job, gone=job is None, ranks=ranks)
        seen = self.wait().step(snapshot, self._cluster.now()) if job is not None else None
        if seen is not None and (seen.done or seen.error is not None):
            return seen.error
        assert watched.error is not None
        if setbacks.may_pass(watched.error):
            raise watched.error
        return watched.error

    def _of_pod(self, watched: Watched, pod: V1Pod | None) -> Watched:
        return replace(watched, name=pod.metadata.name) if pod is not None else watched

    def _result(
        self, pod: V1Pod | None, state: PodState | None, error: GpuError | None, watched: Watched
    ) -> tuple[Any, GpuError | None]:
        """Return rank 0's result, and how the gang ended."""
        if pod is None or state is None:
            return (result_of_gone(watched) if error is None else None), error
        return read_result(
            pod, state, error, self._of_pod(watched, pod), cluster=self._cluster, extract=self._task.extract_result
        )

    def _release(self, *, succeeded: bool) -> None:
        """Delete the Job and with it all pods, or leave those that have ended, as on_finish_action says."""
        self._is_released = True
        job = self._job
        if job is None:
            return
        try:
            call_with_retries(
                lambda: self._release_job(job, succeeded), within=_RELEASE_WITHIN, say=self._task.log.warning
            )
        except GpuError as error:  # how it ended is what the task is about
            self._task.log.error("%s could not be released, and runs until its deadline: %s", self.what, error)

    def _release_job(self, job: Job, succeeded: bool) -> None:
        meta = job["metadata"]
        pods = self._jobs.pods(meta["name"], meta["namespace"], uid=meta["uid"])
        note_use(pods, self._cluster)
        if self._task.keeps(succeeded):
            self._jobs.end_pods(job)
            for pod in pods:
                self._jobs.mark_collected(pod)
        else:
            self._jobs.delete(job)


def _is_owned(pod: V1Pod, uid: str) -> bool:
    return not uid or any(each.uid == uid for each in pod.metadata.owner_references or ())
