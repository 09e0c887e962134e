"""Reconciler: reads a pool, decides, and writes - under the pool's lock. open_pool connects one to a pool's cloud and
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from airflow_gpu_provider.clouds.base import Group, Platform, Report, platform_for
from airflow_gpu_provider.cluster.api.autoscaler import check_running, read_autoscaler_status
from airflow_gpu_provider.cluster.api.clock import Clock, ServerClock
from airflow_gpu_provider.cluster.api.code_requests import delete_code, list_code
from airflow_gpu_provider.cluster.api.karpenter_objects import why_kept
from airflow_gpu_provider.cluster.api.nodes import list_nodes, list_unlabelled_nodes
from airflow_gpu_provider.cluster.api.pods import delete_pod, list_pods_on, list_pool_pods, list_run_pods
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.api.threads import AT_ONCE, all_in_parallel
from airflow_gpu_provider.cluster.model.code_record import CodeRecord
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.ledger.ledger import Ledger
from airflow_gpu_provider.money.budget import Budget, budget_of
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.admission import GangQueue
from airflow_gpu_provider.scaling.apply.writes import Outcome, Writes, do_nothing
from airflow_gpu_provider.scaling.deadlines import within_budget
from airflow_gpu_provider.scaling.decide.decisions import Decision, decide, heeding_losses, left_to_provisioner
from airflow_gpu_provider.scaling.decide.other_specs import check_one_spec, of_other_specs
from airflow_gpu_provider.scaling.decide.placement import check_group_claims, claimed
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange, until_it_begins
from airflow_gpu_provider.scaling.decide.shortage import WITHOUT_AUTOSCALER
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease, QuotaCheck
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand, list_demand, write_demand
from airflow_gpu_provider.scaling.state.gang_requests import delete_job, list_gang_jobs
from airflow_gpu_provider.scaling.state.lock import PoolLock, Sighting, read_memo
from airflow_gpu_provider.scaling.state.recent_writes import RecentWrites

PATIENCE = timedelta(seconds=60)
"""How long to wait for the pool's lock: longer than a dead holder keeps it."""

PATIENCE_IN_A_LOOP = timedelta(seconds=1)
"""The same in an event loop, which retries: between two tries it waits without a thread."""

_RECORDED_EVERY = timedelta(seconds=30)


class Reconciler:
    """One pool, as one task changes it. Not for several threads at once.

    Args:
        holder: The name to show as the lock's holder: dag/run/task/try, host and pid.
        report: Takes one line immediately: that it waits for the lock. All others are in the outcome.
        clock: The time that all processes that change the pool use. Default: the API server's.

    Attributes:
        patience: How long it waits for the pool's lock before DemandLockBusy.
        shared: With whom of this process it shares what it reads of the cluster (`shared_items`).
    """

    patience = PATIENCE
    shared = ""
    _recorded_at: datetime | None = None

    def __init__(
        self,
        pool: GpuPool,
        platform: Platform,
        api: ApiClient,
        *,
        holder: str,
        report: Report,
        clock: Clock | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self.pool = pool
        self.platform = platform
        self.api = api
        self.holder = holder
        self._report = report
        self.clock: Clock = clock or ServerClock(api)
        self.at_once = at_once
        self.ledger = Ledger(api, pool, report, taken=self._taken)

    def _taken(self, groups: Iterable[Group], now: datetime) -> Collection[str]:
        return claimed(self.pool, groups, list_demand(self.api), now) if self.pool.manage == "scale" else ()

    @cached_property
    def _seen_of_lock(self) -> Sighting:
        return Sighting()

    def snapshot(self, lock: PoolLock | None = None) -> PoolSnapshot:
        """Read everything that a decision needs; a lock that is held is renewed meanwhile."""
        return heeding_losses(self._read(lock).within_quota().within_price())

    def _read(self, lock: PoolLock | None = None) -> PoolSnapshot:
        """Read the pool, with its groups as the cloud limits them."""
        alive = lock.keep if lock else do_nothing
        shared, selector = self.shared, self.pool.node_selector
        leases = list_demand(self.api, self.pool.name, shared=shared)
        nodes = list_nodes(self.api, selector, shared=shared)
        alive()
        pods = list_pool_pods(self.api, selector, nodes, at_once=self.at_once, alive=alive, shared=shared)
        shown = self.platform.observe()
        alive()
        now = self.clock.now()
        # Read after the groups, so that it includes what was written meanwhile.
        memo = lock.memo if lock else read_memo(self.api, self.pool.name, shared=shared)
        groups = RecentWrites.parse(memo).on(shown, now)
        seen = PoolSnapshot(now=now, pool=self.pool, leases=leases, nodes=nodes, pods=pods, groups=groups)
        seen = self._without_claimed_groups(seen) if self.pool.manage == "scale" else seen
        seen = self._with_joined(seen) if self.pool.nodes_join_unlabelled else seen
        seen = self._with_kept(seen) if self.pool.has_karpenter else seen
        seen = self._with_autoscaler(seen) if self.pool.is_autoscaled else seen
        return seen.with_doubts()

    def _without_claimed_groups(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Leave out external groups that another pool used first."""
        taken = claimed(self.pool, seen.groups, list_demand(self.api), seen.now)
        return replace(seen, groups=tuple(group for group in seen.groups if group.name not in taken), claimed=taken)

    def _with_joined(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Add the nodes that joined without the pool's labels."""
        machines = {machine.id for group in seen.groups for machine in group.live}
        new = machines - {node.machine for node in seen.nodes}
        joined = list_unlabelled_nodes(self.api, self.pool.name, new) if new else ()
        pods = {pod.uid: pod for pod in (*seen.pods, *list_pods_on(self.api, joined, at_once=self.at_once))}
        return replace(seen, nodes=(*seen.nodes, *joined), pods=tuple(pods.values()))

    def _with_kept(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Add why Karpenter keeps what it is to remove."""
        left = {each.machine.id: each.node for each in left_to_provisioner(seen)}
        annotated = [machine for machine, node in left.items() if node and node.do_not_disrupt]
        return replace(seen, kept=why_kept(self.api, left, seen.now, annotated)) if left else seen

    def _with_autoscaler(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Add what explains the wait for nodes that an autoscaler adds for pods."""
        if not self.pool.needs_cluster_autoscaler or all(pod.node for pod in snapshot.pods):
            return snapshot
        return replace(snapshot, autoscaler=read_autoscaler_status(self.api))

    def upgrade(self, report: Report) -> None:
        """Have the cloud bring groups without machines up to date: what a plan calls "upgrade"."""
        with self._lock() as lock:
            begun = self.platform.upgrade(report, lock.check)
            lock.memo = RecentWrites.parse(lock.memo).with_upgraded(begun, self.clock.now()).dump()

    def want(
        self,
        key: DemandKey,
        nodes: int,
        until: datetime,
        *,
        gang: int = 0,
        over_quota: Collection[str] | None = None,
        listed: ListPrices | None = None,
        budget: Budget | None = None,
        waits_until: datetime | None = None,
    ) -> Outcome:
        """Write the run's demand, in place of what it wanted before, and bring the pool closer to it.

        The switch is moved before the demand is written, so that there is never demand without it.

        Args:
            key, nodes, until: The demand.
            gang: So many of the nodes must be in one zone.
            over_quota: What `Platform.groups_over_quota` has returned for it; None if nobody asked.
            listed: What the cloud lists for the pool's candidates, as `Plan.listed` has it; None if it is not asked.
            budget: It ends when this money is used, if that is before `until`; None without a limit.
            waits_until: A reservation that begins by then is waited for; None: none is.

        Raises:
            PoolDrift: Another pool's runs use an external group that this pool names, or another DAG wants nodes by
                another spec of this pool.
            DemandLockBusy, DemandLockLost: Nothing was decided; another try helps.
        """
        with self._lock() as lock:
            before = self._read(lock)
            check_group_claims(before)
            check_one_spec(self.pool, key, before.live_leases)
            seen = None if over_quota is None else QuotaCheck(at=before.now, groups=tuple(sorted(over_quota)))
            prices = None if listed is None else replace(listed, at=before.now)
            lease = replace(_lease(before, key, nodes, until, prices, budget), gang=gang, over_quota=seen)
            others = tuple(each for each in before.leases if each.key != key)
            snapshot = heeding_losses(replace(before, leases=(*others, lease)).within_quota().within_price())
            lease = until_it_begins(snapshot, lease, waits_until)
            snapshot = replace(snapshot, leases=(*others, lease))

            def write() -> None:
                write_demand(self.api, lease, check=lock.check)
                self.ledger.begin(key, before.now, lease.until, prices, lease.max_cost)

            return self._writes(lock, snapshot, decide(snapshot)).carry_out(write)

    def budget(
        self,
        key: DemandKey,
        nodes: int,
        limit: float,
        *,
        listed: ListPrices | None,
        seen: tuple[Group, ...] | None = None,
    ) -> Budget:
        """Return how long a run's money lasts for so many nodes, by what all of its tries have cost.

        Demand that a person has extended beyond its money keeps its budget: that has been decided. So has the limit
        been that a person has raised.

        Args:
            listed: What `Platform.list_prices` returned, or a plan has read.
            seen: The pool's groups, where they have just been read. Default: they are, where it takes them.

        Raises:
            PriceUnknown, BudgetExceeded: That is not known, or what is left is too little (`budget_of`).
        """
        leases = list_demand(self.api, self.pool.name)
        own = next((lease for lease in leases if lease.key == key), None)
        given = own.budget if own else None
        if own and given and own.extended and own.live(self.clock.now()):
            return given
        if given and given.raised:
            limit = max(limit, given.limit)
        spent: float | None = 0.0
        now = self.clock.now()
        if own or self.ledger.knows(key):
            seen = self.platform.observe() if seen is None else seen
            spent, now = self._spent(key, seen)
        wanted = nodes + sum(lease.nodes for lease in leases if lease.key != key and lease.live(now))

        def are_there() -> bool:
            groups = self.platform.observe() if seen is None else seen
            machines = sum(each.state != "terminating" for group in groups for each in group.machines)
            there = max(len(list_nodes(self.api, self.pool.node_selector)), machines)
            return there >= min(wanted, self.pool.max_nodes)

        found = budget_of(self.pool, limit, nodes=nodes, spent=spent, at=now, listed=listed, are_there=are_there)
        return found.raised_as(given)

    def _spent(self, key: DemandKey, seen: tuple[Group, ...]) -> tuple[float | None, datetime]:
        """Return what a run has cost by now, and when that is; a machine that runs costs until it is recorded.

        None where that is not known: a price is not, or what was recorded of the run could not be read.
        """
        nodes = list_nodes(self.api, self.pool.node_selector)
        now = self.clock.now()
        self.ledger.machines(seen, nodes, now)
        bill = self.ledger.bill(key, self.platform, now, seen=seen)
        return None if bill.is_lost else bill.total_cost, now

    def within_budget(self, lease: DemandLease) -> DemandLease:
        """Return changed demand with what its budget is by now: until its nodes came nothing was spent, or little."""
        if lease.budget is None or lease.extended or not lease.nodes:
            return lease
        listed = self.platform.list_prices()
        found = self.budget(lease.key, lease.nodes, lease.budget.limit, listed=listed)
        return replace(lease, budget=found, until=within_budget(lease.until, found))

    def check_one_spec(self, key: DemandKey) -> None:
        """Raise PoolDrift where `want` would; the pool is read only if there may be a reason."""
        now = self.clock.now()
        if of_other_specs(
            self.pool, key, (lease for lease in list_demand(self.api, self.pool.name) if lease.live(now))
        ):
            check_one_spec(self.pool, key, self.snapshot().live_leases)

    def check_autoscaler(self) -> None:
        """Raise AutoscalerNotRunning where cluster-autoscaler is to add the pool's nodes, and is not alive."""
        if self.pool.needs_cluster_autoscaler:
            check_running(self.api, self.pool.name, self.clock.now(), or_else=WITHOUT_AUTOSCALER)

    def extend(
        self,
        keys: Collection[DemandKey],
        longer: Callable[[DemandLease, PoolSnapshot], DemandLease],
        extend_jobs: Callable[[PoolSnapshot, DemandLease], Sequence[str]],
    ) -> Outcome:
        """Extend demand, its switch first, then its Jobs; demand that is gone or over is not written.

        Args:
            longer: Returns a Lease extended, or raises if it may not be; it is called for all before the first write.
            extend_jobs: Extends the Jobs of an extended Lease, and returns what it did.
        """
        with self._lock() as lock:
            before = self.snapshot(lock)
            found = [lease for lease in before.leases if lease.key in keys and lease.live(before.now)]
            after = [longer(lease, before) for lease in found]
            others = tuple(lease for lease in before.leases if lease not in found)
            snapshot = replace(before, leases=(*others, *after))
            done = list[str]()

            def write() -> None:
                for lease in after:
                    done.extend(extend_jobs(snapshot, lease))
                    write_demand(self.api, lease, check=lock.check)
                    self.ledger.begin(lease.key, before.now, lease.until, max_cost=lease.max_cost)

            outcome = self._writes(lock, snapshot, decide(snapshot)).carry_out(write)
            return replace(outcome, log_lines=(*done, *outcome.log_lines))

    def reconcile(self, *, admits: bool = False) -> Outcome:
        """Bring the pool closer to what is wanted now. Takes the lock only if there is something to do.

        With `admits`, gangs whose nodes are free are admitted, too.
        """
        snapshot = self.snapshot()
        decision = decide(snapshot)
        gangs = GangQueue(self.api, snapshot, decision) if admits else None
        if decision.is_empty and (gangs is None or gangs.is_empty):
            update = gangs.update if gangs else None
            self._record_idle(snapshot)
            return Outcome(snapshot=snapshot, decision=decision, log_lines=decision.notes, gangs=update)
        with self._lock() as lock:
            snapshot = self.snapshot(lock)
            decision = decide(snapshot)
            gangs = GangQueue(self.api, snapshot, decision) if admits else None
            if gangs is None:
                return self._writes(lock, snapshot, decision).carry_out()
            gangs.move_on(lock.check)
            outcome = self._writes(lock, snapshot, decision).carry_out()
            return replace(outcome, gangs=gangs.update, log_lines=(*gangs.update.log_lines, *outcome.log_lines))

    def amend(self, *asks: DemandChange) -> Outcome:
        """Write what runs want from now on, if their demand is unchanged; bring the pool closer to it.

        A run that has withdrawn its demand meanwhile does not get it back.
        """
        wanted = {ask.before: self.within_budget(ask.after) for ask in asks}  # before the lock: it reads the ledger
        with self._lock() as lock:
            before = self.snapshot(lock)
            after = {lease: wanted[lease] for lease in before.leases if lease in wanted}
            snapshot = replace(before, leases=tuple(after.get(lease, lease) for lease in before.leases))

            def write_all() -> None:
                for lease in after.values():
                    write_demand(self.api, lease, check=lock.check)

            return self._writes(lock, snapshot, decide(snapshot)).carry_out(write_all)

    def delete_demand_and_reconcile(self, key: DemandKey) -> Outcome:
        """Delete the run's demand, and bring the pool closer to what is wanted without it. Idempotent."""
        if all(lease.key != key for lease in list_demand(self.api, self.pool.name)):
            return self.reconcile()
        with self._lock() as lock:
            self.ledger.end(key, self.clock.now())
            lock.check()
            delete_demand(self.api, key)
            snapshot = self.snapshot(lock)
            return self._writes(lock, snapshot, decide(snapshot)).carry_out()

    def delete_demand_if_unchanged(self, lease: DemandLease) -> bool:
        """Delete a run's demand if it is unchanged since it was read; return False if it is gone or has changed."""
        with self._lock() as lock:
            if lease not in list_demand(self.api, self.pool.name):
                return False
            self.ledger.end(lease.key, self.clock.now())
            lock.check()
            return delete_demand(self.api, lease.key)

    def delete_pods(self, pods: Iterable[Pod]) -> list[str]:
        """Delete exactly these pods, and return the names of those that were there, as namespace/name.

        The Job of a gang's pods is deleted with them, and before them.

        Raises:
            GpuError: A pod could not be deleted; the deletion of all the others was requested.
        """
        leaving = tuple(pods)
        self.ledger.pods(leaving, self.clock.now())
        to_go = [pod for pod in leaving if not pod.deleting]
        gangs = {pod.job: (pod.namespace, pod.job_name, pod.job) for pod in leaving if pod.job}
        try:
            all_in_parallel(self._delete_job, [*gangs.values()], at_once=self.at_once)
        finally:
            were_there = all_in_parallel(self._delete, to_go, at_once=self.at_once)
        return [str(pod) for pod, was_there in zip(to_go, were_there, strict=True) if was_there]

    def _delete(self, pod: Pod) -> bool:
        with _named(f"Pod {pod}"):
            return delete_pod(self.api, pod)

    def _delete_job(self, job: tuple[str, str, str]) -> bool:
        namespace, name, uid = job
        with _named(f"Job {namespace}/{name}"):
            return delete_job(self.api, namespace, name, uid)

    def delete_gangs(self, lease: DemandLease) -> list[str]:
        """Delete the gangs of a run, and return their names as namespace/name; waiting gangs have no pods.

        Jobs are listed only if the run has wanted nodes for a gang, or a gang that waits may still bring nodes.
        """
        may_be = lease.gang or self.pool.provisioning_class
        jobs = list_gang_jobs(self.api, self.pool.name, lease.key.hash) if may_be else ()
        to_go = [(job.namespace, job.name, job.uid) for job in jobs]
        were_there = all_in_parallel(self._delete_job, to_go, at_once=self.at_once)
        return [str(job) for job, was_there in zip(jobs, were_there, strict=True) if was_there]

    def code(self, run: str = "") -> tuple[CodeRecord, ...]:
        """Return the code that tasks have left on the pool: of all runs, or of one by the hash of its DemandKey."""
        return list_code(self.api, self.pool.name, run=run)

    def delete_code(self, code: Iterable[CodeRecord]) -> list[str]:
        """Delete the ConfigMaps of exactly these, and return the names of those that were there."""
        return [str(each) for each in code if self._delete_code(each)]

    def _delete_code(self, each: CodeRecord) -> bool:
        with _named(f"Code {each}"):
            return delete_code(self.api, each)

    def run_pods(self, key: DemandKey) -> list[Pod]:
        return list_run_pods(self.api, self.pool.node_selector, key.hash)

    def release(self, key: DemandKey) -> Outcome:
        """Delete the gangs, the pods and the code that the run left, and release its demand. Idempotent.

        Raises:
            GpuError: An error of the cluster or the cloud. If a pod or code cannot be deleted, the demand and the
                machines without a running pod are released nevertheless.
        """
        try:
            leases = [lease for lease in list_demand(self.api, self.pool.name) if lease.key == key]
            pods = self.run_pods(key)
            deleted = [f"gang {name}" for lease in leases for name in self.delete_gangs(lease)]
            deleted += [f"pod {name}" for name in self.delete_pods(pods)]
            deleted += [f"code {name}" for name in self.delete_code(self.code(key.hash))]
        except GpuError:
            self.delete_demand_and_reconcile(key)
            raise
        outcome = self.delete_demand_and_reconcile(key)
        lines = (*(f"deleted leftover {name}" for name in deleted), *outcome.log_lines)
        left = tuple(str(pod) for pod in pods if pod.uncollected and pod.succeeded and not pod.deleting)
        return replace(outcome, log_lines=lines, uncollected=left)

    def record_machines(self) -> None:
        """Record the pool's present machines, for the bills of its runs."""
        snapshot = self.snapshot()
        self.ledger.machines(snapshot.groups, snapshot.nodes, snapshot.now)

    def _record_idle(self, snapshot: PoolSnapshot) -> None:
        """Record, now and then, machines that their provisioner keeps or drains though no run wants them: they cost."""
        draining = any(machine.drains for group in snapshot.groups for machine in group.machines)
        if not draining and not left_to_provisioner(snapshot):
            return
        if self._recorded_at is None or snapshot.now - self._recorded_at >= _RECORDED_EVERY:
            self._recorded_at = snapshot.now
            self.ledger.machines(snapshot.groups, snapshot.nodes, snapshot.now)

    def _writes(self, lock: PoolLock, snapshot: PoolSnapshot, decision: Decision) -> Writes:
        return Writes(
            lock=lock,
            snapshot=snapshot,
            decision=decision,
            platform=self.platform,
            api=self.api,
            clock=self.clock,
            ledger=self.ledger,
            holder=self.holder,
            at_once=self.at_once,
        )

    def _lock(self) -> PoolLock:
        spec = self.pool.serialize()
        return PoolLock(
            self.api,
            self.pool.name,
            self.holder,
            timeout=self.patience,
            clock=self.clock,
            report=self._report,
            spec=spec,
            seen=self._seen_of_lock,
        )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Name what could not be deleted in the error."""
    try:
        yield
    except GpuError as error:
        raise type(error)(f"{what} could not be deleted: {error.what}", error.fix, **error.details) from error


def _lease(
    before: PoolSnapshot,
    key: DemandKey,
    nodes: int,
    until: datetime,
    prices: ListPrices | None = None,
    budget: Budget | None = None,
) -> DemandLease:
    """Return the run's new demand; while it is live it keeps its place in the queue."""
    old = next((lease for lease in before.leases if lease.key == key and lease.live(before.now)), None)
    created_at = old.created_at if old else before.now
    if budget is not None:
        budget = budget.begun_at(created_at).raised_as(old.budget if old else None)
    until = within_budget(until, budget)
    groups = tuple(group.name for group in before.groups if not group.owned)
    made = DemandLease(
        key=key,
        nodes=nodes,
        until=until,
        created_at=created_at,
        groups=groups,
        task_nodes=old.task_nodes if old else (),
        prices=prices.with_older(old.prices if old else None) if prices else None,
        budget=budget,
        allowed=before.pool.allowed,
    )
    if old and old.unextended_until:
        made = replace(made, unextended_until=max(old.unextended_until, until))
    is_longer = old is not None and old.extended and old.until > until
    return replace(made, until=old.until, extended=old.extended) if old and is_longer else made


def open_pool(pool: GpuPool, *, owner: str, holder: str, report: Report) -> Reconciler:
    """Connect to a (rendered) pool.

    Args:
        owner: The writer of the groups' spec, "<installation>/<dag>"; a different spec by another is a PoolDrift.
        holder: The holder that the pool's lock names.

    Raises:
        ConnectionNotFound, CredentialsError: The pool's Airflow connection is missing or holds no credentials.
        ClusterNotFound: There is no such cluster.
    """
    platform = platform_for(pool, owner=owner)
    return Reconciler(pool, platform, platform.cluster_access().api_client(), holder=holder, report=report)
