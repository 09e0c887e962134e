"""PodTry: one try of a task, with one pod after another if preemption is not failure.

However it ends, it leaves no pod that is not waited for, and no node that is not released.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import NoReturn

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from airflow_gpu_provider.cluster.model.gpu_evidence import ASKED
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import (
    LOST,
    GpuError,
    GpuOutOfMemory,
    PodDeadline,
    PodFailed,
    TaskKilled,
)
from airflow_gpu_provider.money.budget import money_is_used
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.deadlines import DEFERRED_AFTER, deferred_for
from airflow_gpu_provider.scaling.end.release_now import WHEN_KILLED, release_quietly
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.training.life.code_of_try import delete_code_quietly
from airflow_gpu_provider.training.life.collect import ResultUnread
from airflow_gpu_provider.training.life.earlier_success import as_it_ended, earlier_success
from airflow_gpu_provider.training.life.host import Host
from airflow_gpu_provider.training.life.larger_gpu import with_larger_gpu
from airflow_gpu_provider.training.life.lost_machines import LostNode, go_on_demand
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import AttemptRecord, Run
from airflow_gpu_provider.training.life.store import RESULT_FILE, attempt_of, newest_of_try
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt, telling_of_success
from airflow_gpu_provider.training.log.trigger_log import write_again
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, WaitOutcome
from airflow_gpu_provider.training.watch.watch_loop import read_wait

_ENDS_WITH_ITS_MONEY = timedelta(seconds=5)
"""How much before the end of its money a pod may end for it: deadlines of pods are whole seconds."""


class PodTry:
    """The pods of one try, as seen by this process.

    `event` is the trigger's, from which it continues; empty for none.
    """

    def __init__(self, run: Run, host: Host, event: Json) -> None:
        self._run = run
        self._host = host
        self._settings = run.settings
        self._cluster = run.cluster
        self.log = run.log
        self._setbacks = Setbacks.from_record(event.get("setbacks") or {})
        self._owner: Ownership | None = None
        self.attempt = self._attempt(AttemptRecord.from_record(event.get("attempt") or {}))
        self.is_resuming = False
        """The first pod was waited for elsewhere and was preempted; the next one is to run here."""
        self.has_timed_out = False
        """execution_timeout has passed and has been handled."""
        self._is_kept = False
        """The task was killed, and its pod runs on."""

    def run(self) -> object:
        """Create a pod and wait for it, here or in the triggerer; if it is preempted and may resume, run the next one.

        Raises:
            TaskDeferred: The triggerer waits.
            GpuError: How the pod ended, or why there is none.
        """
        with self._heeding_budget(), self._heeding_memory():
            if self.is_resuming:
                return self._run_attempts()
            with self._heeding_timeout(), self._leaving_no_nodes():
                return self._run_attempts()

    def resume(self, watched: WaitOutcome) -> object:
        """Collect a pod that was waited for, wait for it again, or run the next one.

        Raises:
            TaskDeferred: The triggerer waits.
            GpuError: How the pod ended.
        """
        self.attempt.adopt(watched)
        with self._heeding_budget(), self._heeding_memory(), self._heeding_timeout():
            return self._resume(watched)

    def resume_without_event(self, error: Exception, find_namespace: Callable[[], str]) -> object:
        """Collect a pod that has ended; delete one that has not, since nothing can wait for it."""
        late = PodDeadline(
            f"The wait for the pod ended in the triggerer: {error}. The pod is deleted.",
            "See the triggerer's log; the next retry starts again.",
        )
        with self._heeding_timeout():
            owner = self._known_owner()
            found = newest_of_try(self.attempt.of_all_tries(namespace := find_namespace()), owner)
            if found is not None:
                self.attempt = self._attempt(AttemptRecord(number=attempt_of(found)))
                name, uid = found["metadata"]["name"], found["metadata"]["uid"]
                self.attempt.there = found
                return self._resume(WaitOutcome(name=name, namespace=namespace, uid=uid, saw_end=False, error=late))
            self._release_nodes(*self.attempt.delete_left(namespace))
            raise late from error

    def kill(self) -> None:
        """Delete the pod, unless on_kill_action keeps it; may be called in a signal handler."""
        if self._settings.is_kept_when_killed:
            self._is_kept = True
            self.log.info("Pod is kept (on_kill_action).")
        else:
            self.attempt.kill()

    # -- its attempts ----------------------------------------------------------------------------------------

    def _resume(self, watched: WaitOutcome) -> object:
        self._run.pod_log.followed = watched.logs
        self._known_owner()
        with self._leaving_no_nodes():
            try:
                return self._collect_or_defer(watched)
            except LOST as error:
                self._prepare_next_attempt(error, watched.lines)
            self.is_resuming = True
            return self._host.run_again()

    def _run_attempts(self) -> object:
        while True:
            try:
                return self._run_attempt()
            except LOST as error:
                self._prepare_next_attempt(error)

    def _run_attempt(self) -> object:
        earlier = earlier_success(self._run, self._host, self.attempt, self._known_owner())
        try:
            if earlier is not None:
                try:
                    return self._collect_earlier(earlier)
                except LOST as error:
                    self.log.warning("%s The training is run again.", error.what)
                    self.attempt = self._attempt(AttemptRecord())
            self.attempt.start()
            if self._settings.deferrable:
                self._defer(self.attempt.wait())
            return self._collect_here(self.attempt.watch_here())
        except TaskDeferred:
            raise
        except BaseException:
            self.attempt.release_uncollected()
            raise

    def _collect_earlier(self, earlier: TaskAttempt) -> object:
        """Collect it in this process, whatever waits for trainings: there is nothing to wait for."""
        self.attempt = earlier
        self.log.info("Collecting %s of an earlier try, which has succeeded: nothing is trained again.", earlier.what)
        earlier.tell_name()
        return self._collect_here(as_it_ended(earlier))

    def _collect_here(self, watched: WaitOutcome) -> object:
        while True:
            try:
                return self._collect(watched)
            except GpuError as error:
                if not self._take_setback(error):
                    raise
            time.sleep(self._setbacks.pause)

    def _collect_or_defer(self, watched: WaitOutcome) -> object:
        try:
            if watched.extended_until is None:
                return self._collect(watched)
            self.attempt.read_again(watched)
        except LOST:
            raise
        except Exception as error:
            if not (isinstance(error, GpuError) and self._take_setback(error)):
                self.attempt.release_uncollected()
                raise
        is_cleared = bool(watched.logs.get("streamed"))
        self._run.pod_log.prepare_next_wait(is_cleared=is_cleared, has_ended=watched.container_ended)
        wait = read_wait(watched.kind, watched.wait) if watched.wait else self.attempt.wait()
        self._defer(wait if watched.extended_until is None else self.attempt.extended(wait, watched.extended_until))

    def _collect(self, watched: WaitOutcome) -> object:
        with telling_of_success(self.attempt, watched):
            return self.attempt.collect(watched, self._setbacks.one_more(self._cluster.now()))

    def _take_setback(self, error: GpuError) -> bool:
        """Count a failure unrelated to the pod; return False for any other failure, and for one that lasts."""
        if self.attempt.is_released:
            return False  # how it ended has been decided already
        now = self._cluster.now()
        setbacks = self._setbacks.one_more(now)
        deadline = self.attempt.record.deadline
        is_late = deadline is not None and now > deadline + COLLECT_WITHIN
        is_unread = isinstance(error, ResultUnread) and setbacks.lasted > COLLECT_WITHIN
        if is_late or is_unread or not setbacks.may_pass(error):
            return False
        self._setbacks = setbacks
        self.log.warning("%s: %s Checking the pod again in %.0f s.", type(error).__name__, error, setbacks.pause)
        return True

    def _prepare_next_attempt(self, error: PodFailed, lines: str = "") -> None:
        """Prepare the pod that follows the lost one; raise `error` if there may be none.

        `lines` are what a triggerer has logged of it, which Airflow clears when the task waits there again.
        """
        self._run.stop.check()
        now, record = self._cluster.now(), self.attempt.record
        deadline = record.deadline
        if deadline is None or now >= deadline:  # an extension may have moved it
            self.attempt.deadlines.read_again()
            deadline = self.attempt.deadlines.of_pod(now)
        why_not = self.attempt.why_not_again(error)
        if why_not := why_not or self._settings.preemptions.why_not(record, deadline=deadline, now=now):
            self.log.info("The pod is not started again: %s.", why_not)
            raise error
        if lines:
            write_again(self.log.log, lines, what=f"attempt {record.number}")
        is_request = error.details.get(ASKED) is True
        following = record.following(deadline=deadline, phases=self.attempt.phases, is_request=is_request)
        if not is_request:
            lost = LostNode.of(error, self._cluster)
            following = following.without(lost.machine, lost.zone)
        self.log.warning("%s Attempt %s starts.", error.what, following.number)
        go_on_demand(self._run, self.attempt.owner, following.machines)
        self._run.pod_log.followed = {}
        self.attempt = self._attempt(following)

    def _attempt(self, record: AttemptRecord) -> TaskAttempt:
        self._host.show_pod(None)
        return self._host.new_attempt(self._run, self._known_owner, record)

    def _known_owner(self) -> Ownership:
        if self._owner is None:
            self._owner = self._host.ownership()
        return self._owner

    # -- deferral --------------------------------------------------------------------------------------------

    def _defer(self, wait: AttemptWait) -> NoReturn:
        attempt, owner, now = self.attempt, self._known_owner(), self._cluster.now()
        sidecar = {"container": PodDefaults.SIDECAR_CONTAINER_NAME, "path": RESULT_FILE}
        carried = {"attempt": attempt.record.until(wait.deadline).to_record(), "setbacks": self._setbacks.to_record()}
        record: dict[str, object] = {
            "pool": self._cluster.pool.serialize(),
            "kind": wait.run_kind,
            "wait": wait.to_record(),
            "owner": owner.writer,
            "key": asdict(attempt.owner.key),
            "code_of": owner.task if self._run.take_code else None,
            "owns_demand": attempt.owns_demand,
            "holder": self._run.holder,
            "deferred_at": time.time(),
            "pause": self._setbacks.pause,
            "delete_on_kill": not self._settings.is_kept_when_killed,
            "grace_seconds": self._settings.grace_seconds,
            "logs": attempt.to_stream(),
            "has_next": not self._settings.preemptions.why_not(attempt.record, deadline=wait.deadline, now=now),
            "result": sidecar if self._settings.has_result else None,
            "extra": {**(self._settings.trigger_kwargs or {}), **carried},
        }
        until = f"{wait.deadline:%Y-%m-%d %H:%M:%SZ} at the latest{_own_deadline(attempt.pod, wait.deadline - now)}"
        self.log.info("Waiting in the triggerer for %s, until %s", attempt.what, until)
        self._host.wait_in_triggerer(record, deferred_for(wait.deadline, now))

    @contextmanager
    def _heeding_memory(self) -> Iterator[None]:
        """Ask for a larger GPU for the next try of a task that ran out of memory, if it may have one."""
        try:
            yield
        except GpuOutOfMemory as error:
            if not self._settings.gets_larger_gpu:
                raise
            raise with_larger_gpu(error, self._run, self.attempt) from error

    @contextmanager
    def _heeding_budget(self) -> Iterator[None]:
        """Say of a pod that ended at its deadline, or was lost then, that the run's money is used, if that is why."""
        try:
            yield
        except (PodDeadline, *LOST) as error:
            try:
                budget, now = self.attempt.deadlines.budget, self._cluster.now()
            except GpuError:
                raise error from None  # the demand cannot be read: how the pod ended matters more
            if budget is None or now < budget.ends_at - _ENDS_WITH_ITS_MONEY:
                raise
            raise money_is_used(self._cluster.pool, budget, error.what, **error.details) from error

    # -- its nodes -------------------------------------------------------------------------------------------

    @contextmanager
    def _heeding_timeout(self) -> Iterator[None]:
        """Delete the pod and release its node when execution_timeout interrupts this block, even during a release.

        Airflow then calls on_kill, as it does to stop a task.
        """
        try:
            yield
        except AirflowTaskTimeout:
            self.kill()
            self._release_nodes()
            self.has_timed_out = True
            raise

    @contextmanager
    def _leaving_no_nodes(self) -> Iterator[None]:
        """Release the pod's node at the end if no demand covers it: no ScaleDownSensor will.

        And raise nothing but TaskKilled once the task received SIGTERM: that error may be swallowed on its way.
        """
        try:
            try:
                yield
            finally:
                self._run.stop.check()
        except (TaskDeferred, AirflowTaskTimeout):
            raise
        except BaseException:
            self._release_nodes()
            raise
        self._release_nodes()

    def _release_nodes(self, *uids: str) -> None:
        """Release the nodes, and the task's code; an error is only logged, since how the pod ended is what matters.

        A task that received SIGTERM has seconds left, and if that happens midway, the release starts again: its first
        write moves the cloud's own switch.
        """
        own = {*uids, *self.attempt.uids}
        try:
            self._release(own)
        except TaskKilled:
            self._release(own)
            raise
        finally:
            if self._run.take_code is not None and self._owner is not None and not self._is_kept:
                delete_code_quietly(self._run, self._owner)

    def _release(self, own: set[str]) -> None:
        owner, pool = self._owner, self._cluster.pool
        if owner is None:
            return
        why = [f"No block's demand covers this task: it releases the nodes of pool {pool.name} without demand."]

        def report(line: str) -> None:
            for each in (*why, line):
                self.log.info("%s", each)
            why.clear()

        def opened() -> Reconciler | None:
            if any(lease.key == owner.key for lease in list_demand(self._cluster.api, pool.name)):
                return None
            return open_pool(pool, owner=owner.writer, holder=self._run.holder, report=report)

        within = WHEN_KILLED if self._run.stop.error is not None else None
        release_quietly(opened, self.attempt.owner.key, log=self.log, own=own, within=within, report=report)


def _own_deadline(pod: Json | None, left: timedelta) -> str:
    """Return, as text, that the pod's own activeDeadlineSeconds end it sooner than the task's deadline."""
    seconds = pod["spec"].get("activeDeadlineSeconds") if pod is not None else None
    if seconds is None or timedelta(seconds=seconds) > left - DEFERRED_AFTER:
        return ""
    return f", or {seconds} s after its start"
