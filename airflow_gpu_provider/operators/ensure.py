"""EnsureGpuPoolOperator: brings a DAG run's GPU nodes up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.errors import GpuError, NodesNotReady
from airflow_gpu_provider.operators.ensure_arguments import check_arguments
from airflow_gpu_provider.operators.node_counts import NodeCounts
from airflow_gpu_provider.operators.one_spec import check_one_spec_in_dag
from airflow_gpu_provider.tasks.links import LINKS
from airflow_gpu_provider.tasks.loops import check_loops
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, duration, given_pool, of_task

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_gpu_provider.clouds.base import Plan
    from airflow_gpu_provider.money.budget import Budget
    from airflow_gpu_provider.pools import GpuPool
    from airflow_gpu_provider.pools.demand_key import DemandKey
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
    from airflow_gpu_provider.scaling.apply.writes import Outcome
    from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait


T = TypeVar("T")

USUAL_WAIT = timedelta(minutes=30)
"""How long nodes are waited for, without a timeout of the task's own."""
_DEFER_MARGIN = timedelta(minutes=2)
_RENDERED = (
    *("gpu_pool", "gpus", "nodes", "gang", "at_least", "max_cost", "block_id"),
    *("prefetch", "prefetch_secrets"),
)


class EnsureGpuPoolOperator(PoolOperator):
    """Make sure that a DAG run has its GPU nodes: record its demand, plan, apply, and wait for the nodes.

    The run's demand is kept in the cluster until ScaleDownSensor withdraws it, at the latest until the pool's
    `max_runtime` is over, or the DAG's dagrun_timeout has ended the run. A second run of this task plans no change. If
    all tasks between it and its ScaleDownSensor have started or ended, it brings up no nodes. When it fails or is
    killed, it withdraws the demand and removes the nodes that it added.

    If a provisioner adds the nodes (`KubernetesGpuPool(provisioner=...)`), they come when pods request them: the task
    checks that the provisioner can add them, and does not wait.

    With `scaling="autoscaler"` cluster-autoscaler adds nodes when pods are pending: the task makes sure that it can,
    and does not wait for nodes.

    Args:
        gpu_pool: The pool. (Airflow's own `pool` is a slot pool, and keeps its meaning.)
        gpus: GPUs that this run wants, rounded up to whole nodes. Default 1 if `nodes` is not given, and as many as
            `gang` needs.
        nodes: Nodes that this run wants, instead of `gpus`. 0 prepares the pool for runs and pods to come: its groups
            are created or updated at size 0, and nothing is requested.
        gang: This many of the nodes must be in one zone: they come together, or an incomplete set is released and the
            next zone, type or market is tried. Default: the largest `nodes` of the GpuPodOperators between this task
            and its ScaleDownSensor; 0 is none.
        dry_run: Log and return the plan, with how long `max_cost` would last, change nothing. Default False.
        wait_for: "ready" (default): nodes are Ready, which is all there is before the device plugin runs. "gpus":
            nvidia.com/gpu is allocatable too.
        timeout: How long to wait for the nodes; with `give_up_after`, how long one attempt takes. Default 30 minutes.
        at_least: How few GPUs (or nodes, if `nodes` is given) suffice: when this many are up, and the others are out of
            stock or have not come within `timeout`, the run continues with them. Default: no fewer than wanted.
        all_or_nothing: If not all nodes come together within `timeout`, or every candidate is out of stock, release
            those that came, and retry later: after 5 minutes at first, 30 in the end. Default False: keep what came.
        give_up_after: For capacity that is hard to get: keep trying this long, instead of `timeout`; `max_runtime` then
            counts from when nodes come. With queued_provisioning: how long trainings may be queued. Default None.
        max_cost: What the run's nodes for this demand may cost, over all tries of the run, in the pool's currency. The
            nodes are kept until that is used at the latest, counted at the dearest machine that the pool may have
            (docs/cost.md). Default: no limit.
        prefetch: Images that the nodes pull from the moment they join (docs/fast-start.md). Default: none.
        prefetch_secrets: Their image pull secrets, in namespace airflow-gpu-provider. Default: none.
        block_id: Identifies this demand within the run, if the run wants nodes of this pool more than once: the same
            value as on its pods and its ScaleDownSensor. `gpu_nodes` sets it. Default: empty.
        keep: Bring nodes though no ScaleDownSensor is sure to run after this task: they stay until `max_runtime` is
            over, or until a janitor finds that the run is. Default False: that is an error.
        deferrable: Wait in the triggerer. Default True.

    Returns:
        dict: `{"pool", "nodes": [...], "gpus", "wanted", "got", "tried": [...], "plan": [...], "timeline": [{"phase",
        "seconds"}]}`; `wanted` and `got` count nodes, `tried` are the candidates that had no machine, and why; those
        that cost too much or come after others, as they lost machines, have `times` 0.

    Raises:
        PoolSpecError: The pool cannot have that many GPUs, or has two specs in the DAG; when that is parsed, if known
            by then. Or no ScaleDownSensor of the pool and block is sure to run after this, which would start machines.
        ScaleDownIsOver: It was cleared without its teardown, which had already run.
        PriceUnknown, BudgetExceeded: How long `max_cost` lasts is not known, or it is less than nodes need, or used.
        PoolDrift, PriceLimitExceeded, QuotaExceeded, OutOfStock, NodesNotReady, GpusNotAllocatable, GroupFailed,
            NoProvisioner, AutoscalerNotRunning: as their names say.
    """

    gpu_role = "ensure"
    template_fields: Sequence[str] = _RENDERED
    _doing = "ensured pool {pool}"
    _after_kill = "Its demand for nodes was withdrawn; run the task again."
    operator_extra_links = LINKS
    ui_color = "#d9f2d9"

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        return super().get_serialized_fields() | {"keep", "plan_only"}

    def __init__(
        self,
        *,
        gpu_pool: GpuPool,
        gpus: int | None = None,
        nodes: int | None = None,
        gang: int | None = None,
        dry_run: bool = False,
        wait_for: Literal["ready", "gpus"] = "ready",
        timeout: float | timedelta = USUAL_WAIT,
        at_least: int | None = None,
        all_or_nothing: bool = False,
        give_up_after: float | timedelta | None = None,
        max_cost: float | str | None = None,
        prefetch: Sequence[str] = (),
        prefetch_secrets: Sequence[str] = (),
        block_id: str = "",
        keep: bool = False,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = given_pool(gpu_pool)
        check_loops(self.gpu_role, self.task_group, gpu_pool)
        check_one_spec_in_dag(self.task_id, gpu_pool, self._dag)
        self.gpus = gpus
        self.nodes = nodes
        self.gang = gang
        self.plan_only = dry_run
        self.wait_for = wait_for
        self.wait_timeout = duration("timeout", timeout)
        self.at_least = at_least
        self.all_or_nothing = all_or_nothing
        self.give_up_after = None if give_up_after is None else duration("give_up_after", give_up_after)
        self.max_cost = max_cost
        self.prefetch, self.prefetch_secrets = prefetch, prefetch_secrets
        self.block_id = block_id
        self.keep = keep
        self.deferrable = deferrable
        check_arguments(self)
        self.check_counts(gang or 0)

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        check_one_spec_in_dag(made.kwargs["task_id"], kwargs.get("gpu_pool"), made.kwargs["dag"])

    def check_counts(self, gang: Any) -> None:
        """Check the counts that are known when the DAG is parsed, given that tasks want `gang` nodes at once.

        Raises:
            PoolSpecError: The pool cannot have that many nodes, or they are too few.
        """
        if not getattr(self.gpu_pool, "is_rendered", False):
            return
        try:
            self._counts(gang).check_if_known()
        except GpuError as error:
            raise of_task(error, self.task_id, self._dag) from error.__cause__

    def resolve_template_files(self) -> None:
        """Check the code of the mapped trainings after it too: the DAG file has been read by now.

        Airflow makes no operator of a mapped task then, which could check its own.
        """
        super().resolve_template_files()
        from airflow_gpu_provider.operators.training_code import check_code_of_mapped

        check_code_of_mapped(self)

    def _counts(self, gang: Any) -> NodeCounts:
        return NodeCounts(self.gpu_pool, gpus=self.gpus, nodes=self.nodes, at_least=self.at_least, gang=gang)

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_gpu_provider.operators.ensured import bring_nothing, push_too_dear
        from airflow_gpu_provider.operators.scale_down_after import check_is_released
        from airflow_gpu_provider.operators.tasks_after_ensure import (
            check_scale_down_is_to_come,
            gang_size,
            work_is_to_come,
        )
        from airflow_gpu_provider.tasks.xcom import push

        if not self.plan_only:
            check_scale_down_is_to_come(self, context["ti"])
        counts = self._counts(gang_size(self) if self.gang is None else self.gang)
        nodes = counts.wanted()
        counts.fewest()
        if not self.plan_only:
            check_is_released(self, nodes=nodes)
        if not self.plan_only and not work_is_to_come(self, context["ti"]):
            return bring_nothing(self.log, self.gpu_pool.name)
        reconciler, plan = self._read(nodes, context)
        lines = plan.lines()
        if self.plan_only:
            lines += self._money_lines(plan, nodes)
        for line in lines:
            self.log.info(line)
        if self.plan_only:
            return {"pool": self.gpu_pool.name, "plan": lines, "changes": not plan.is_empty}
        push(context, "plan", lines)
        push_too_dear(plan.too_dear, reconciler.clock.now(), context)
        key = self._key(context)
        over_quota = self._call_with_retries(
            lambda: reconciler.platform.groups_over_quota(
                _nodes_with_others(reconciler, key, nodes), self.log.warning, plan
            )
        )
        with self._giving_up(lambda: reconciler, context):
            budget = self._budget(reconciler, key, nodes, plan)
            self._apply(reconciler, plan, nodes, over_quota)
            want = partial(
                reconciler.want,
                key,
                gang=counts.of_one_zone,
                over_quota=over_quota,
                listed=plan.listed,
                budget=budget,
            )
            result = self._wait(reconciler, key, counts, want, context)
            self._stop.check()
            return result

    def _read(self, nodes: int, context: Context) -> tuple[Reconciler, Plan]:
        """Connect to the pool, check what is asked before anything is written, and plan."""
        from airflow_gpu_provider.operators.training_code import check_code_of_trainings
        from airflow_gpu_provider.operators.training_namespaces import check_namespaces
        from airflow_gpu_provider.tasks.night_records import read_history
        from airflow_gpu_provider.tasks.nothing_begun import before_first_write

        if nights := read_history(self, context).in_words(self.gpu_pool.currency):
            self.log.info("%s", nights)
        with before_first_write(context, is_resumed=self._is_resumed):
            reconciler = self._call_with_retries(lambda: self._open(context, self.gpu_pool))
            self._call_with_retries(reconciler.check_autoscaler)
            self._call_with_retries(lambda: check_namespaces(self, reconciler.api, self.log.warning))
            self._call_with_retries(lambda: check_code_of_trainings(self, reconciler.api))
            key = self._key(context)
            self._call_with_retries(lambda: reconciler.check_one_spec(key))
            return reconciler, self._call_with_retries(lambda: self._plan(reconciler, nodes, context))

    def _money_lines(self, plan: Plan, nodes: int) -> Iterable[str]:
        from airflow_gpu_provider.money.planned_money import money_lines

        if (max_cost := self._most) is None:
            return ()
        return money_lines(self.gpu_pool, max_cost, nodes, plan.listed)

    def _plan(self, reconciler: Reconciler, nodes: int, context: Context) -> Plan:
        from airflow_gpu_provider.scaling.decide.scarce_capacity import with_wait
        from airflow_gpu_provider.tasks.run_identity import run_ends_at

        now = reconciler.clock.now()
        waits = self._waits_until(now, run_ends_at(context, reconciler.clock)) - now
        return with_wait(reconciler.platform.plan(nodes), waits)

    def _waits_until(self, now: datetime, latest: datetime | None) -> datetime:
        return min(filter(None, (now + (self.give_up_after or self.wait_timeout), latest)))

    @property
    def _most(self) -> float | None:
        """The (rendered) max_cost; raises PoolSpecError where it is none."""
        from airflow_gpu_provider.money.budget import as_amount, check_max_cost

        if self.max_cost is None:
            return None
        check_max_cost(self.gpu_pool, most := as_amount(self.max_cost))
        return most

    def _budget(self, reconciler: Reconciler, key: DemandKey, nodes: int, plan: Plan) -> Budget | None:
        """Return how long the run's money lasts, once for the whole try; raises before anything is created in vain."""
        if (limit := self._most) is None:
            return None
        return self._call_with_retries(
            lambda: reconciler.budget(key, nodes, limit, listed=plan.listed, seen=plan.groups)
        )

    def _apply(self, reconciler: Reconciler, plan: Plan, nodes: int, over_quota: Collection[str]) -> None:
        """Bring the groups to the plan; if that fails midway, to a new plan from there."""
        plans, platform, report = [plan], reconciler.platform, self.log.info
        self._call_with_retries(
            lambda: platform.apply(plans.pop() if plans else platform.plan(nodes), report, over_quota)
        )
        if any(change.action == "upgrade" for change in plan.changes):
            self._call_with_retries(lambda: reconciler.upgrade(report))

    def _call_with_retries(self, call: Callable[[], T]) -> T:
        """Repeat an idempotent call until it succeeds, or its error is no longer tolerated."""
        from airflow_gpu_provider.scaling.wait.retry import call_with_retries

        return call_with_retries(call, within=self.wait_timeout, report=self.log.info)

    def _wait(
        self,
        reconciler: Reconciler,
        key: DemandKey,
        counts: NodeCounts,
        want: Callable[..., Outcome],
        context: Context,
    ) -> dict[str, Any]:
        from airflow_gpu_provider.operators.ensured import kept_until
        from airflow_gpu_provider.operators.prefetching import begin_prefetch
        from airflow_gpu_provider.operators.scale_down_after import is_left_running
        from airflow_gpu_provider.scaling.decide.snapshot import budget_lines
        from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
        from airflow_gpu_provider.tasks.run_identity import group_writer, lock_holder

        nodes = counts.wanted()
        outcome, now, latest = self._call_with_retries(lambda: self._want(reconciler, key, nodes, want, context))
        begin_prefetch(self.prefetch, self.prefetch_secrets, reconciler, key, self.log)
        wait = NodesWait(
            key=key,
            wait_for="groups" if self.gpu_pool.nodes_come_with_pods or not nodes else self.wait_for,
            started=now,
            deadline=now + (self.give_up_after or self.wait_timeout),
            nodes=nodes,
            at_least=counts.fewest(),
            all_or_nothing=self.all_or_nothing,
            patience=self.wait_timeout,
            latest=latest,
        )
        progress = wait.step(outcome.snapshot)
        of_money = budget_lines(outcome.snapshot, key) if self.max_cost is not None else ()
        stays = (kept_until(outcome.snapshot, key),) if self.keep and is_left_running(self, nodes=nodes) else ()
        for line in (*outcome.log_lines, *of_money, *stays, *progress.lines):
            self.log.info(line)
        if progress.error:
            raise progress.error
        if progress.result is not None:
            return self._finish(lambda: reconciler, dict(progress.result), context)
        if self.deferrable:
            self._defer(wait, reconciler, group_writer(context), lock_holder(context))
        return self._finish(lambda: reconciler, self._block(wait, reconciler, group_writer(context)), context)

    def _want(
        self,
        reconciler: Reconciler,
        key: DemandKey,
        nodes: int,
        want: Callable[..., Outcome],
        context: Context,
    ) -> tuple[Outcome, datetime, datetime | None]:
        """Record the run's demand, and begin to meet it; return also the time, and when the run ends."""
        from airflow_gpu_provider.scaling.deadlines import demand_until
        from airflow_gpu_provider.tasks.run_identity import run_ends_at

        now = reconciler.clock.now()
        latest = run_ends_at(context, reconciler.clock)
        if not nodes:
            return reconciler.delete_demand_and_reconcile(key), now, latest
        until = demand_until(self.gpu_pool, now, give_up_after=self.give_up_after, run_ends_at=latest)
        return want(nodes, until, waits_until=self._waits_until(now, latest)), now, latest

    def _defer(self, wait: NodesWait, reconciler: Reconciler, owner: str, holder: str) -> None:
        from airflow_gpu_provider.triggers.pool import NodesTrigger, PoolRecord

        record = PoolRecord(pool=self.gpu_pool.serialize(), owner=owner, holder=holder, wait=wait.to_record())
        what = "the pool's node groups" if wait.wait_for == "groups" else "the pool's nodes"
        within = wait.deadline - reconciler.clock.now() + _DEFER_MARGIN
        self._defer_to(NodesTrigger(record.to_record()), what, until=wait.deadline, timeout=within)

    def _block(self, wait: NodesWait, reconciler: Reconciler, owner: str) -> dict[str, Any]:
        from airflow_gpu_provider.scaling.wait.pool_loop import run_wait

        waiting = run_wait(wait, self.gpu_pool, owner, report=self.log.info, every=15.0, reconciler=reconciler)
        return dict(self._stop.run(waiting).result or {})

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue with the trigger's event: return its result, or withdraw the demand and raise its error."""
        if event["status"] == "done":
            return self._finish(lambda: self._open(context, self.gpu_pool), event["result"], context)
        with self._giving_up(lambda: self._open(context, self.gpu_pool), context):
            raise GpuError.from_record(event["error"])

    def _resume_without_event(self, error: Exception, context: Context) -> Any:
        with self._giving_up(lambda: self._open(context, self.gpu_pool), context):
            raise NodesNotReady(
                f"Pool {self.gpu_pool.name}: the wait in the triggerer ended: {error}.",
                "See the triggerer's log; the next try starts the wait again.",
                pool=self.gpu_pool.name,
            ) from error

    @contextmanager
    def _giving_up(self, opened: Callable[[], Reconciler], context: Context) -> Iterator[None]:
        """Withdraw the run's demand when its task fails; a deferral is not a failure.

        An error of the withdrawal is only logged. The candidates that had no machine are pushed to XCom, for the web
        UI: a failed task returns nothing.
        """
        from airflow_gpu_provider.operators.ensured import too_dear_of
        from airflow_gpu_provider.scaling.end.release_now import WHEN_KILLED, release_quietly
        from airflow_gpu_provider.tasks.xcom import push

        key = self._key(context)
        try:
            yield
        except TaskDeferred:
            raise
        except BaseException as error:
            self.log.info("Withdrawing this run's demand for nodes.")
            within = WHEN_KILLED if self._stop.error is not None else None
            release_quietly(opened, key, log=self.log, within=within)
            if isinstance(error, GpuError) and (tried := error.details.get("tried")):
                push(context, "tried", [*tried, *too_dear_of(self.gpu_pool, context)])
            raise

    def _finish(self, opened: Callable[[], Reconciler], result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Record and log what has come; return the task's result."""
        from airflow_gpu_provider.ledger.ledger import quietly
        from airflow_gpu_provider.operators.ensured import log_nodes, too_dear_of
        from airflow_gpu_provider.operators.prefetching import prefetched
        from airflow_gpu_provider.tasks.telemetry import of_nodes, record_phases

        result = {**result, "tried": [*result.get("tried", ()), *too_dear_of(self.gpu_pool, context)]}
        if result["nodes"]:  # some may be gone before scale-down
            quietly(lambda: opened().record_machines(), self.log.warning)
            pulls = prefetched(opened, self._key(context), result, self.log) if self.prefetch else []
            result["timeline"] = [*result["timeline"], *pulls]
        self._lineage = partial(of_nodes, self.gpu_pool, result["nodes"])
        log_nodes(self.log, self.gpu_pool, result)
        record_phases(self, result["timeline"])
        return {**result, "plan": context["ti"].xcom_pull(task_ids=self.task_id, key="plan") or []}

    def _key(self, context: Context) -> DemandKey:
        from airflow_gpu_provider.tasks.run_identity import run_key

        return run_key(context, self.gpu_pool.name, self.block_id)


def _nodes_with_others(reconciler: Reconciler, key: DemandKey, nodes: int) -> int:
    """Return how many nodes the pool needs for this run and for those that already want nodes."""
    from airflow_gpu_provider.scaling.state.demand_leases import list_demand

    now = reconciler.clock.now()
    leases = list_demand(reconciler.api, reconciler.pool.name)
    return nodes + sum(lease.nodes for lease in leases if lease.key != key and lease.live(now))
