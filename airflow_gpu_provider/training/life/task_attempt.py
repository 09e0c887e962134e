"""TaskAttempt: one attempt of a task's try, as PodTry sees it, whether it has one pod or a gang of them.

What it creates is checked first, placed, and created once, when everything earlier has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Protocol

from kubernetes.client import ApiClient, V1Pod

from airflow_gpu_provider.cluster.api.informer import connected
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import GpuError, PodFailed, PodResultLost
from airflow_gpu_provider.scaling.wait.records import Narrator
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries, persistently
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.training.life.collect import ResultUnread, check_exec
from airflow_gpu_provider.training.life.demand_spec import check_one_spec
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.placing import check_pods, placement_of
from airflow_gpu_provider.training.life.run import AttemptRecord, PodDeadlines, Run
from airflow_gpu_provider.training.life.store import (
    TaskObjects,
    as_v1,
    attempt_of,
    is_going,
    is_of_attempt,
    newest_of_try,
)
from airflow_gpu_provider.training.place.pod_placement import Placement, check_gpus, place
from airflow_gpu_provider.training.wait.attempt_wait import WARN_AT, AttemptWait, WaitOutcome
from airflow_gpu_provider.training.wait.pod_wait import phase_in_words
from airflow_gpu_provider.training.wait.pull import slow_pull
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler, sampled_time
from airflow_gpu_provider.training.watch.view import RunKind
from airflow_gpu_provider.training.watch.watch_loop import follow, run_kind_of

CREATE_WITHIN = timedelta(minutes=5)
"""How long a worker tries to create a pod: a quota exhausted for longer is left to the task's retries."""

_OF_SETTINGS = ("schedule_seconds", "start_seconds", "gpus", "hang_seconds")  # that a wait has as they are


class AttemptHost(Protocol):
    """The operator, as its attempts call it."""

    def push(self, key: str, value: object) -> None:
        """Push an XCom."""

    def show_pod(self, pod: V1Pod | None) -> None:
        """Take the pod as it is known now, or None."""


class TaskAttempt(ABC):
    """What is created, waited for, collected and released once in a try, in this order.

    `owner` returns its owner, and asks Airflow.

    Attributes:
        there: What it has created, as last read, or as requested: then it may exist. If another process has created it,
            only its name, namespace and uid; None before it is known.
        pod: The pod, one of several, or the template of a gang's; None if unknown.
        phases: The phases of its life.
    """

    _kind_in_words: str
    """What it creates: known also while the cluster is out of reach."""

    def __init__(self, run: Run, host: AttemptHost, owner: Callable[[], Ownership], record: AttemptRecord) -> None:
        self._run = run
        self._settings = run.settings
        self._cluster = run.cluster
        self.log = run.log
        self._host = host
        self._owner_of_try = owner
        self.record = record
        self.there: Json | None = None
        self.pod: Json | None = None
        self.phases: Sequence[Json] = ()
        self.is_released = False
        """Whether its end has been decided, and what it left has been deleted or kept, as the task wants."""

    @abstractmethod
    def _objects_by(self, api: ApiClient) -> TaskObjects:
        """Return the reader and writer of what it creates."""

    @cached_property
    def _objects(self) -> TaskObjects:
        return self._objects_by(self._cluster.api)

    @property
    def what(self) -> str:
        """What is waited for, as text."""
        return self._words(self.there) if self.there else f"no {self._kind_in_words}"

    def _words(self, there: Json) -> str:
        return f"{self._kind_in_words} {there['metadata']['name']}"

    @property
    @abstractmethod
    def uids(self) -> set[str]:
        """The uids of its pods, as far as known."""

    def adopt(self, watched: WaitOutcome) -> None:
        """Take over by name what was created elsewhere: it may have to be killed before it is read."""
        self.there = {"metadata": {"name": watched.name, "namespace": watched.namespace, "uid": watched.uid}}

    # -- what is there already -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def namespace(self) -> str:
        """The namespace of what it is to create, rendered."""

    def of_all_tries(self, namespace: str) -> list[Json]:
        """Return what all tries of the task have created there."""
        return self._objects.of_task(namespace, self._identity)

    @abstractmethod
    def has_succeeded(self) -> bool:
        """Return True if what is there has ended well, as it and its pods are now."""

    @abstractmethod
    def tell_name(self) -> None:
        """Tell Airflow the name of what is there."""

    def delete_left(self, namespace: str) -> set[str]:
        """Delete everything that tries of the task have left; return the uids of the pods."""
        pods = self._cluster.pods.of_task(namespace, self._identity)
        for each in self.of_all_tries(namespace):
            self._objects.delete(each)
        return {pod["metadata"]["uid"] for pod in pods}

    def kill(self) -> None:
        """Delete what was created, in a signal handler: with another client, as the interrupted code may hold locks."""
        if self.there is None:
            return
        try:
            self._kill(self.there, self._objects_by(self._cluster.new_client().api_client))
        except GpuError as error:
            self.log.error("%s could not be deleted: %s", self._words(self.there), error)

    def _kill(self, known: Json, objects: TaskObjects) -> None:
        """Delete it; if the answer to its creation has not arrived, another task's object may have the name."""
        meta = known["metadata"]
        there = known if meta.get("uid") else objects.read(meta["name"], meta["namespace"], uid=None)
        if there is not None and (meta.get("uid") or is_of_attempt(there, self._identity)):
            objects.delete_when_killed(there, grace_seconds=self._settings.grace_seconds)

    # -- creation --------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Create it, and tell Airflow its name."""

    def _find_or_create(self, request: Json) -> Json:
        """Return what this try has created, now unless it has done so before; everything earlier is ended first.

        A refusal that may be transient, such as an exhausted quota, is tolerated for some minutes.
        """

        def once() -> Json:
            return self._found(request["metadata"]["namespace"]) or self._made(request)

        there = self.there = call_with_retries(once, within=CREATE_WITHIN, report=self.log.warning)
        self.record = replace(self.record, number=attempt_of(there))
        return there

    def _found(self, namespace: str) -> Json | None:
        """Return what this try has already created, if it exists; everything earlier is deleted."""
        there = self.of_all_tries(namespace)
        newest = newest_of_try(there, self._identity) if self._settings.reattaches else None
        current = newest if newest is not None and attempt_of(newest) >= self.record.number else None
        for each in there:
            if each is not current and not is_going(each):
                self.log.info("Deleting %s of an earlier try or attempt.", self._words(each))
                self._objects.delete(each)
        if current is not None:
            self.log.info("Continuing with %s, which this try has already created.", self._words(current))
            self._objects.reattach(current)
        return current

    def _made(self, request: Json) -> Json:
        where, pods = request["metadata"]["namespace"], self._cluster.pods
        check_exec(self._run, where)
        check_one_spec(self._run, self.deadlines)
        pods.await_end(pods.of_task(where, self._identity), self._cluster.clock, self.log.info)
        self.there = request
        made = self._objects.create(request, self._identity)
        self.log.info("Created %s in %s%s.", self._words(made), where, ", suspended" * self._objects.is_suspended(made))
        return made

    # -- waiting ---------------------------------------------------------------------------------------------

    @abstractmethod
    def to_stream(self) -> Json | None:
        """Return what the triggerer streams of the log: TaskLog.to_stream."""

    @abstractmethod
    def wait(self) -> AttemptWait:
        """Return the wait for it; it is known at this point."""

    def watch_here(self) -> WaitOutcome:
        """Wait in this process until it has ended, writing its log."""
        wait = self.wait()
        while (watched := self._watch_until_deadline(wait)).extended_until is not None:
            wait = self.extended(wait, watched.extended_until)
        return watched

    def extended(self, wait: AttemptWait, until: datetime) -> AttemptWait:
        """Return the wait that goes on until then, as the run's demand was extended."""
        self.log.info("The run's demand was extended: %s may go on until %s", self.what, f"{until:%Y-%m-%d %H:%M:%SZ}")
        self.deadlines.read_again()
        self.record = self.record.until(until)
        return replace(wait, deadline=until)

    def _watch_until_deadline(self, wait: AttemptWait) -> WaitOutcome:
        narrator = Narrator(self.log.info, started=wait.started)
        watch = partial(self._watch_once, run_kind_of(wait), narrator)
        setbacks = Narrator(self.log.warning, started=wait.started)
        return self._run.stop.run(persistently(watch, until=wait.deadline, narrator=setbacks))

    @abstractmethod
    def read_again(self, watched: WaitOutcome) -> None:
        """Read what was adopted, so that its log can be streamed again."""

    async def _see(self, there: Iterable[Json]) -> None:  # noqa: B027
        """Take objects as they are now, its own among them, before their logs are followed; this process waits."""

    async def _watch_once(self, kind: RunKind, narrator: Narrator) -> WaitOutcome:
        pool, log, task_log = self._cluster.pool, self.log, self._run.pod_log
        async with connected(pool.cluster_identity, lambda: self._cluster.access) as api:
            logs = kind.logs(api, self.to_stream(), log.log, task_log)
            gpus = GpuSampler(api, kind.wait, report=log.info, warn=log.warning)
            try:
                async with logs, gpus:
                    progress = await follow(
                        kind,
                        api,
                        pool,
                        logs,
                        gpus,
                        log.log,
                        owner=self.owner.writer,
                        narrator=narrator,
                        open_access=lambda: self._cluster.access,
                        see=self._see,
                    )
            finally:
                task_log.followed = logs.rest()
        return replace(WaitOutcome.of_progress(kind.wait, progress), logs=task_log.followed, gpu_use=gpus.use)

    @abstractmethod
    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> object:
        """Decide how it ended, collect what it left, release it, then return its result or raise.

        `setbacks` are the try's, including this one if it fails.

        Raises:
            GpuError: How it ended; or it may still run, or could not be collected: then it is left untouched.
        """

    def why_not_again(self, error: GpuError) -> str:
        """Return why this end is not to be followed by another attempt; empty where one may help."""
        return ""

    @abstractmethod
    def release_uncollected(self) -> None:
        """Release what is not collected, if it is known and not released yet."""

    def placed(self, pod: V1Pod) -> V1Pod:
        """Return a pod to create, checked and placed; errors that may be transient are tolerated for some minutes."""
        own, nodes = self._settings.placement, self._settings.nodes

        def once() -> V1Pod:
            check_gpus(self._cluster.pool, own.gpus)
            self._cluster.pool.check_nodes_come(nodes=nodes, gpus=own.gpus, queue=own.queue)
            check_pods(self._run, [(pod, own.base_container, own.gpus)], is_wanted=lambda: self.deadlines.is_wanted)
            return place(pod, self._placement(pod.metadata.namespace))

        return call_with_retries(once, within=CREATE_WITHIN, report=self.log.warning)

    @property
    def _identity(self) -> Ownership:
        """Whose it is, and which attempt; by these, what it has created is found."""
        return replace(self._owner_of_try(), attempt=self.record.number)

    def _placement(self, namespace: str) -> Placement:
        return placement_of(self._run, self.owner, self.deadlines, namespace, self.record.zones)

    @property
    def owner(self) -> Ownership:
        """The same, with the demand that covers it, or its own if no other does."""
        return self._identity

    @property
    def owns_demand(self) -> bool:
        """Whether that demand is its own Lease, which no ScaleDownSensor will withdraw."""
        return False

    @cached_property
    def deadlines(self) -> PodDeadlines:
        return PodDeadlines(
            api=self._cluster.api,
            clock=self._cluster.clock,
            key=self._owner_of_try().key,
            max_runtime=self._cluster.pool.max_runtime,
            queue_time=self._cluster.pool.demand_lasts() - self._cluster.pool.max_runtime,
            execution_timeout=self._settings.execution_timeout,
            started_at=self._run.started_at,
            at_latest=self.record.deadline,
        )

    def _show(self, pod: Json) -> V1Pod:
        """Take a pod as it is known now, show it to the operator, and return it as KubernetesPodOperator has it."""
        self.pod, shown = pod, as_v1(pod)
        self._host.show_pod(shown)
        return shown

    def _of_wait(self) -> dict[str, Any]:
        """Return what all waits have: for what was created, and the task's limits; note its deadline."""
        meta = self._meta
        started = parse_time(meta.get("creationTimestamp")) or self._cluster.clock.now()
        self.record = self.record.until(deadline := self.deadlines.of_pod(started))
        return {
            **{key: meta[key] for key in ("namespace", "name", "uid")},
            "started": started,
            **{key: getattr(self._settings, key) for key in _OF_SETTINGS},
            "deadline": deadline,
            "queued_until": self.deadlines.queued_until(started),
            "is_covered": self.deadlines.is_covered,
            "demand": self.owner.key.lease_name if self.deadlines.is_covered or self.owns_demand else "",
            "timed_out_at": self.deadlines.timed_out_at,
            "money_short_at": budget.used_at(WARN_AT) if (budget := self.deadlines.budget) else None,
        }

    @property
    def _meta(self) -> Json:
        """The metadata of what is there; it is known at this point."""
        assert self.there is not None
        meta: Json = self.there["metadata"]
        return meta

    def _tell(self, watched: WaitOutcome, pods: Iterable[Json]) -> None:
        """Tell how it went, what the GPUs did, and what would have made it faster: for log, bill and report."""
        phases, use = watched.phases_until(self._cluster.now()), watched.gpu_use
        if phases:
            self.phases = phases
            for phase in phases:
                self.log.info("  %s", phase_in_words(phase))
            whole = self.record.whole_timeline(phases) if self.record.number > 1 else phases
            self._push("timeline", [*map(dict, whole)])
        if use.is_known:
            self.log.info("  %s", use.in_words(has_hung=watched.has_hung))
            self._push("utilization", use.to_json(has_hung=watched.has_hung))
        if use.mean is not None and not watched.has_hung:
            self._cluster.pods.note_computed(pods, use.mean / 100, sampled=sampled_time(use))
        if pull := slow_pull(phases, self._cluster.pool):
            self.log.info("  %s", pull)
        if advice := [*filter(None, (pull, watched.logs.get("network")))]:  # the network's was logged when it was seen
            self._push("advice", advice)

    def _push_result_of_failed(self, result: Any) -> None:
        """Push the result of an attempt that has failed, as Airflow pushes what a task returns."""
        for key, value in outputs_of(result, several=self._settings.multiple_outputs).items():
            self._push(key, value)

    def _push(self, key: str, value: Any) -> None:
        """Push what is known at the end; an error is only logged, since how it ended is what matters."""
        try:
            self._host.push(key, value)
        except Exception as error:  # noqa: BLE001 - an XCom backend raises what it likes
            self.log.warning("The XCom %s could not be pushed: %r", key, error)


@contextmanager
def telling_of_success(attempt: TaskAttempt, watched: WaitOutcome) -> Iterator[None]:
    """Say that it had succeeded, where that was seen, in an error that tells nothing of how it ended."""
    if watched.saw_end and watched.error is None:
        attempt.record = replace(attempt.record, has_succeeded=True)
    try:
        yield
    except GpuError as error:
        if not attempt.record.has_succeeded or isinstance(error, PodFailed | PodResultLost | ResultUnread):
            raise
        raise type(error)(f"{error.what} The training had succeeded.", error.fix, **error.details) from error


def unless_it_passes(watched: WaitOutcome, setbacks: Setbacks) -> GpuError:
    """Return why an attempt could not be watched; raise it if that may pass, so that it is watched again."""
    assert watched.error is not None
    if setbacks.may_pass(watched.error):
        raise watched.error
    return watched.error


def outputs_of(result: Any, *, several: bool) -> Mapping[str, Any]:
    """Return what Airflow pushes of a result, by XCom key; nothing of None."""
    outputs = result if several and isinstance(result, Mapping) else {}
    return {} if result is None else {**outputs, "return_value": result}
