"""ScaleDownSensor: releases a DAG run's GPU nodes and waits until they are gone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_gpu_provider.errors import GpuError, PoolNotReleased, PoolSpecError
from airflow_gpu_provider.sensors.release_policy import RELEASE_RETRY_POLICY
from airflow_gpu_provider.tasks.links import LINKS
from airflow_gpu_provider.tasks.loops import check_loops
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, duration, given_pool

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from airflow_gpu_provider.money.bill import Bill
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.demand_key import DemandKey
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
    from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
    from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
    from airflow_gpu_provider.scaling.wait.retry import Tolerance

USAGE = "usage"
"""XCom key of what the run's nodes did and cost, also where the scale-down fails (docs/xcom.md)."""

_HIDING = ("soft_fail", "never_fail", "silent_fail")
_WAITING = ("depends_on_past", "wait_for_downstream")
_FIRST_LEG = timedelta(seconds=10)
_AIRFLOW_MARGIN = timedelta(minutes=2)


class ScaleDownSensor(PoolOperator, BaseSensorOperator):
    """Withdraw a DAG run's demand for a pool, remove the machines that no run wants any more, and see them go.

    First it deletes the pods that the run left, withdraws the run's demand and releases the free machines; then it
    waits until nothing is left that only this run wanted. Nodes that another run wants, or that a pod of anybody's
    is on, stay; the log and the result name them and whom they stay for.

    Make it the teardown of EnsureGpuPoolOperator with `on_failure_fail_dagrun=True`, or let `gpu_nodes` do so.

    Args:
        gpu_pool: The pool. (Airflow's own `pool` is a slot pool, and keeps its meaning.)
        block_id: EnsureGpuPoolOperator's, where that has one. `gpu_nodes` gives it. Default: empty.
        deferrable: Wait in the triggerer. Default True; else `mode` says how: "poke" or "reschedule".
        poke_interval: Seconds between two looks when not deferrable. Default 5.
        timeout: How long machines may take to go, draining included, and how long a cloud or a cluster that does not
            answer is asked again; a missing permission is tolerated for five minutes of it. Default 30 minutes.
            After that the task fails with PoolNotReleased, and is tried again. A connection or a cluster that is not
            found, and credentials that are not accepted, are tolerated for five minutes until the pool was reached
            once, and the task is not tried again: see `retry_policy`.
        retries: Default 3.
        retry_delay: Default half a minute.
        retry_policy: Default: no other try where the pool cannot be reached before a person has corrected something.
        execution_timeout: Default None, whatever Airflow's configuration has as default: `timeout` bounds each try.
        weight_rule: Default "upstream": it comes before work that is yet to begin.
        depends_on_past, wait_for_downstream: Not taken from default_args: machines do not wait for an earlier run.

    Returns:
        dict: `{"pool", "nodes", "desired", "kept": [...], "seconds", "usage"}`; `usage` is what the run's nodes did and
        cost: `{"machines", "node_seconds": {"booting", "working", "idle"}, "cost": {the same, and "total"}, "currency",
        "at_least"}`: "unknown" where the pool has no `price_per_hour` for a machine, and why it may have been more, or
        None. It is not there if the cluster did not say. `nothing_begun` is True where the pool could not be read, and
        nothing is there to be released: no try of the block's Ensure has written anything, and no training has started.

    Raises:
        PoolNotReleased: Something did not go in time, or could not be released; the message names the machines that
            are still there, what the run has cost so far, and when the cloud's own switch ends them: where the cluster
            cannot be read, as the cloud shows them.
        PoolSpecError: `soft_fail`, `never_fail` or `silent_fail` is set, which would hide a GPU that still runs, or
            `depends_on_past` or `wait_for_downstream` is, which would leave it running.
    """

    gpu_role = "scale_down"
    template_fields: Sequence[str] = ("gpu_pool", "block_id")
    _doing = "scaled pool {pool} down"
    _after_kill = "Clear this task: machines that it had not released yet may still be running."
    operator_extra_links = LINKS
    ui_color = "#f2e3d9"

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        block_id: str = "",
        deferrable: bool = True,
        poke_interval: float | timedelta = 5,
        timeout: float | timedelta = timedelta(minutes=30),
        soft_fail: bool = False,
        never_fail: bool = False,
        silent_fail: bool = False,
        retries: int | None = 3,
        retry_delay: float | timedelta = timedelta(seconds=30),
        retry_policy: RetryPolicy | None = RELEASE_RETRY_POLICY,
        execution_timeout: timedelta | None = None,
        depends_on_past: bool = False,
        wait_for_downstream: bool = False,
        weight_rule: Any = "upstream",
        **kwargs: Any,
    ) -> None:
        hiding = {"soft_fail": soft_fail, "never_fail": never_fail, "silent_fail": silent_fail}
        waiting = {"depends_on_past": depends_on_past, "wait_for_downstream": wait_for_downstream}
        waiting = {name: self._by_keyword(name, value, False) for name, value in waiting.items()}
        release_timeout = duration("timeout", timeout)
        super().__init__(
            poke_interval=poke_interval,
            # Airflow's own sensor timeout is final, our own is tried again: let ours come first.
            timeout=release_timeout + _AIRFLOW_MARGIN,
            retries=retries,
            retry_delay=retry_delay,
            retry_policy=retry_policy,
            execution_timeout=execution_timeout,
            weight_rule=weight_rule,
            **{**hiding, **waiting, **kwargs},
        )
        _check({**hiding, **waiting})
        self.release_timeout = release_timeout
        self.gpu_pool = given_pool(gpu_pool)
        check_loops(self.gpu_role, self.task_group, gpu_pool)
        self.block_id = block_id
        self.deferrable = deferrable
        self._reconciler: Reconciler | None = None
        self._wait: ReleaseWait | None = None
        self._patience: Tolerance | None = None
        self._narrator: Narrator | None = None
        self._ensures: list[str] | None = None

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        for_all = {name: default_args.get(name) for name in _HIDING}
        _check({**for_all, **kwargs})
        made.kwargs |= dict.fromkeys(_WAITING, False)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        progress = self._first_leg(context)
        if progress is None or progress.result is None:
            self._defer(context)
        return self._finish(context, dict(progress.result))

    def poke(self, context: Context) -> PokeReturnValue:
        progress = self._look(context)
        if progress and progress.error:
            raise self._not_released(context, progress.error)
        if progress is None or progress.result is None:
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._finish(context, dict(progress.result)))

    def _first_leg(self, context: Context) -> Progress | None:
        """Release, and look for a few seconds whether that was all: a deferral costs several seconds by itself."""
        until = time.monotonic() + _FIRST_LEG.total_seconds()
        while True:
            progress = self._look(context)
            if (progress and progress.done) or time.monotonic() > until:
                return progress
            time.sleep(1)

    def _look(self, context: Context) -> Progress | None:
        """Release what can be released now, and return how the wait stands; None where a call failed that may pass."""
        from airflow_gpu_provider.cluster.api.clock import SystemClock
        from airflow_gpu_provider.scaling.wait.records import Narrator
        from airflow_gpu_provider.scaling.wait.retry import NO_ACCESS_FOR, Tolerance
        from airflow_gpu_provider.tasks.xcom import UNCOLLECTED_SUCCESS, push

        wait = self._begun_or_new(context)
        narrator = self._narrator = self._narrator or Narrator(self._report, started=wait.started)
        no_access_until = wait.started + NO_ACCESS_FOR
        patience = self._patience = self._patience or Tolerance(
            wait.deadline, worked=True, no_access_until=no_access_until
        )
        try:
            outcome = wait.release(self._opened(context))
        except GpuError as error:
            now = SystemClock().now()
            if not wait.begun and (nothing := self._nothing_to_release(context, error)):
                return nothing
            if not patience.allows(error, now):
                raise self._not_released(context, error) from error
            narrator.log(now, patience.in_words(error))
            return None
        patience.succeeded()
        if outcome.uncollected:
            push(context, UNCOLLECTED_SUCCESS, [*outcome.uncollected])
        progress = wait.step(outcome.snapshot)
        narrator.log(SystemClock().now(), *outcome.log_lines, *progress.lines)
        return progress

    def _nothing_to_release(self, context: Context, error: GpuError) -> Progress | None:
        """Return the end of a wait for nothing; None if the run may have begun something."""
        from airflow_gpu_provider.scaling.wait.records import Progress
        from airflow_gpu_provider.tasks.nothing_begun import NOTHING_BEGUN, tasks_that_began_nothing

        if self._ensures is None:  # once in a process: they have all ended
            self._ensures = tasks_that_began_nothing(self, context)
        if not self._ensures:
            return None
        self._report(
            f"This run has nothing of pool {self.gpu_pool.name} to release: no try of {', '.join(self._ensures)} got so"
            f" far as to write anything, and no training of the block has started. {type(error).__name__}: {error}"
        )
        empty = {"pool": self.gpu_pool.name, "nodes": 0, "desired": 0, "kept": [], "seconds": 0.0}
        return Progress(done=True, result={**empty, NOTHING_BEGUN: True})

    def _begun_or_new(self, context: Context) -> ReleaseWait:
        from airflow_gpu_provider.cluster.api.clock import SystemClock
        from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait

        if self._wait is None:
            started = SystemClock().now()
            if self.reschedule and (first := context["ti"].get_first_reschedule_date(context)):
                started = first
            self._wait = ReleaseWait(key=self._key(context), started=started, deadline=started + self.release_timeout)
        return self._wait

    def _key(self, context: Context) -> DemandKey:
        from airflow_gpu_provider.tasks.run_identity import run_key

        return run_key(context, self.gpu_pool.name, self.block_id)

    def _opened(self, context: Context) -> Reconciler:
        from airflow_gpu_provider.tasks.run_identity import pool_opener

        if self._reconciler is None:
            self._reconciler = pool_opener(context, self._report)(self.gpu_pool)
        return self._reconciler

    def _not_released(self, context: Context, error: GpuError) -> PoolNotReleased:
        from airflow_gpu_provider.sensors.not_released import not_released

        return not_released(
            error, self._key(context), lambda: self._opened(context), on_bill=partial(self._leave, context)
        )

    def _leave(self, context: Context, bill: Bill) -> dict[str, Any]:
        from airflow_gpu_provider.tasks.telemetry import of_bill
        from airflow_gpu_provider.tasks.xcom import push

        usage = {**bill.to_json(), "block": self.block_id or None}
        push(context, USAGE, usage)
        self._lineage = partial(of_bill, usage, self.gpu_pool.gpus_per_node)
        return usage

    def _defer(self, context: Context) -> NoReturn:
        from airflow_gpu_provider.tasks.run_identity import group_writer, lock_holder
        from airflow_gpu_provider.triggers.pool import PoolRecord, ReleaseTrigger

        wait = self._begun_or_new(context)
        record = PoolRecord(
            pool=self.gpu_pool.serialize(),
            owner=group_writer(context),
            holder=lock_holder(context),
            wait=wait.to_record(),
        )
        trigger, within = ReleaseTrigger(record.to_record()), self.release_timeout + _AIRFLOW_MARGIN
        self._defer_to(trigger, "the machines to go", until=wait.deadline, timeout=within)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on when the trigger has an event: return what it found, or raise its error."""
        if event["status"] != "done":
            raise self._not_released(context, GpuError.from_record(event["error"]))
        return self._finish(context, event["result"])

    def _finish(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        from airflow_gpu_provider.tasks.nothing_begun import NOTHING_BEGUN

        if result.get(NOTHING_BEGUN):
            return result
        self._report(_released(result))
        try:
            usage = self._usage(context, result)
        except GpuError as error:
            self.log.warning("The machines are gone, and what they cost is not known: %s", error)
            return result
        return {**result, "usage": usage}

    def _usage(self, context: Context, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the run's nodes of this block did and cost, after the release of blocks that its DAG has lost."""
        from airflow_gpu_provider.ledger import run_bill
        from airflow_gpu_provider.tasks.night_records import keep_night

        key, reconciler = self._key(context), self._opened(context)
        missing = self._release_former_blocks(context)
        now = reconciler.clock.now()
        # What is idle from here on waits for the cloud and the cluster. Before an earlier try it is unknown how long.
        began = now - timedelta(seconds=result["seconds"]) if context["ti"].try_number == 1 else None
        bill = reconciler.ledger.bill(key, reconciler.platform, now, release_began=began).lacking(missing)
        run_bill.log_bill(self.log, key, bill)
        run_bill.measure(key, bill)
        usage = self._leave(context, bill)
        keep_night(self, context, usage, lambda: reconciler.platform.observe())
        return usage

    def _release_former_blocks(self, context: Context) -> str:
        """Release what the run wants for blocks that its DAG has lost; return what of theirs is in no bill."""
        from airflow_gpu_provider.sensors.former_blocks import FormerBlocks, blocks_of
        from airflow_gpu_provider.tasks.run_identity import pool_opener

        blocks = blocks_of(self.get_dag())
        if not blocks:
            return ""
        here, key, connect = self._opened(context), self._key(context), pool_opener(context, self._report)
        former = FormerBlocks(here=here, key=key, blocks=blocks, connect=connect, report=self._report)
        former.release()
        return former.unbilled()

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Turn the death of the trigger into an error that is tried again; Airflow's own sensor timeout is final."""
        from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferralError

        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, TaskDeferralError) as error:
            ended = PoolNotReleased(
                f"Pool {self.gpu_pool.name}: the wait in the triggerer ended: {error}.",
                "See the triggerer's log; the next try releases the machines again.",
            )
            raise self._not_released(context, ended) from error

    def _report(self, line: str) -> None:
        self.log.info("%s", line)


def _released(result: Mapping[str, Any]) -> str:
    """Return how the wait ended, in words: what is left, and for whom."""
    from airflow_gpu_provider.scaling.decide.snapshot import plural

    pool, after, nodes = result["pool"], f"after {result['seconds']} s", result["nodes"]
    if not nodes and not result["desired"]:
        return f"Pool {pool} is released {after}: no node is left."
    size = "" if result["desired"] == nodes else f" (desired size {result['desired']})"
    stay = f"{plural(nodes, 'node')}{size} {'stays' if nodes == 1 else 'stay'}"
    if result["kept"]:
        return f"This run's demand for pool {pool} is withdrawn {after}; {stay}: {'; '.join(result['kept'])}."
    return f"Pool {pool} is released {after}; {stay}, which this package does not remove."


def _check(arguments: Mapping[str, Any]) -> None:
    for names, why in ((_HIDING, "would hide GPUs that still run"), (_WAITING, "would leave GPUs running")):
        given = [name for name in names if arguments.get(name)]
        if given:
            raise PoolSpecError(f"{given[0]}=True {why}.", f"Leave {given[0]} out.")
