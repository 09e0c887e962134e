"""The state of a pool as rows for display and programs: nodes, GPUs in use, who wants nodes, what it costs.

Images whose pull took long are read from the events, which a cluster keeps for an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.backoff import losses_there
from airflow_gpu_provider.cluster.api.rest import ApiClient, list_items
from airflow_gpu_provider.cluster.model.events import ImagePull, PodEvent
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.money.amounts import UNKNOWN, cost_since, price_source, total
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.admission import Admission, admission
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.snapshot import (
    MachineStatus,
    PoolSnapshot,
    plural,
    wanted_by,
    wanted_nodes,
)
from airflow_gpu_provider.scaling.end.janitor import Kind, unwanted
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.gang_jobs import GangJob
from airflow_gpu_provider.scaling.state.gang_requests import list_gang_jobs
from airflow_gpu_provider.times import format_seconds, format_time
from airflow_gpu_provider.training.wait.pull import WORTH_A_MINUTE, remedies
from airflow_gpu_provider.untrusted import one_line


def slow_pulls(api: ApiClient, pool: GpuPool, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield of each image whose pull took a minute the slowest pull, and what would have made it shorter."""
    path = f"/api/v1/namespaces/{namespace}/events"
    raw = list_items(api, path, resource="events", fieldSelector="reason=Pulled")
    slowest: dict[str, ImagePull] = {}
    for pull in filter(None, (PodEvent.parse(each).pull for each in raw)):
        if pull.seconds >= max(WORTH_A_MINUTE, slowest[pull.image].seconds if pull.image in slowest else 0.0):
            slowest[pull.image] = pull
    for pull in slowest.values():
        took = format_seconds(timedelta(seconds=pull.seconds))
        fix = f"What helps: {'; '.join(remedies(pool))} (docs/fast-start.md)."
        yield f"in the last hour a pull of {pull.image} took {took}", fix


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """One machine that exists.

    Attributes:
        node: Its node; empty until it has joined.
        state: usable, coming, broken or taken, as decisions see it (`MachineStatus`); or cordoned:
            usable, but for our own cordon, which comes before the machine's end.
        gpus: Allocatable nvidia.com/gpu.
        gpus_used: What its unfinished pods request.
        pods: Pods for which its node must stay.
        runs: The DAG runs of the pods that run there, as "<dag>/<run>".
        age_seconds: Since it was launched; None if unknown.
        cost_per_hour: By the spec's price, or the list price that its demand was asked for at; None if there is none.
        cost_so_far: `cost_per_hour` for its age.
    """

    pool: str
    machine: str
    node: str
    group: str
    state: str
    gpus: int
    gpus_used: int
    pods: tuple[str, ...]
    age_seconds: float | None
    cost_per_hour: float | None
    cost_so_far: float | None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """Demand of one DAG run; it counts while it is live, that is, until `until`.

    Attributes:
        extended: Why that is later than its Ensure set it; empty if it is not.
        budget: With a `max_cost`: `{"max_cost", "spent", "at", "left", "per_hour", "raised"}`, in the pool's currency:
            what it had spent at that time, what is left now at least, what its nodes cost an hour at most, and why it
            has more than its DAG says. Empty without, and for demand that a person has extended beyond its money.
        unreadable: What of its Lease cannot be read, and what it is taken for.
    """

    pool: str
    run: str
    installation: str
    nodes: int
    until: str
    live: bool
    extended: str = ""
    budget: Mapping[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PoolStatus:
    """One pool, now.

    Attributes:
        where: The account, the cluster and the identity used for them.
        cluster: `GpuPool.cluster_identity`, which tells it from pools of its name in other clusters.
        wanted: Nodes wanted by `wanted_by`.
        nodes: Nodes that new pods can run on.
        booting: Machines that exist and will soon be such nodes: those that are coming.
        out_of_use: Machines that exist but take no new pods: those that are cordoned, broken or taken.
        launching: Machines that are requested but do not exist yet.
        unwanted: Machines that no run wants, as `airflow gpu reap` finds them.
        notes: What keeps nodes from coming or from being usable, in the provisioner's words; which candidates come
            after others, as they lost machines; and that something is left that no run wants.
        gpus_idle: GPUs of its nodes that no pod requests.
        cost_per_hour: For all machines together; None if a price is missing.
        currency: That of all costs.
        price_source: Whose prices they go by: `cost.price_source`.
    """

    pool: str
    where: str
    wanted: int
    wanted_by: str
    nodes: int
    booting: int
    out_of_use: int
    launching: int
    gpus: int
    gpus_used: int
    gpus_idle: int
    cost_per_hour: float | None
    currency: str
    machines: tuple[MachineRow, ...]
    leases: tuple[LeaseRow, ...]
    price_source: str = ""
    cluster: str = ""
    gangs: tuple[GangRow, ...] = ()
    hangs: tuple[HangRow, ...] = ()
    notes: tuple[str, ...] = ()
    unwanted: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.wanted or self.launching or self.machines or self.leases or self.gangs)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; an unknown cost is "unknown"."""
        values: dict[str, Any] = _with_unknown(asdict(self))
        return values


def pool_status(snapshot: PoolSnapshot, where: str, gangs: tuple[GangRow, ...] = ()) -> PoolStatus:
    machines = snapshot.supply
    rows = tuple(_machine_row(snapshot, each) for each in machines if each.is_there)
    states = Counter(row.state for row in rows)
    left = Counter(each.kind for each in unwanted(snapshot, snapshot))
    gpus, used = sum(row.gpus for row in rows), sum(row.gpus_used for row in rows)
    return PoolStatus(
        pool=snapshot.pool.name,
        where=where,
        wanted=wanted_nodes(snapshot),
        wanted_by=wanted_by(snapshot),
        nodes=states["usable"],
        booting=states["coming"],
        out_of_use=len(rows) - states["usable"] - states["coming"],
        launching=sum(group.unfilled for group in snapshot.groups) + len(machines) - len(rows),
        gpus=gpus,
        gpus_used=used,
        gpus_idle=max(0, gpus - used),
        cost_per_hour=total(row.cost_per_hour for row in rows),
        currency=snapshot.pool.currency,
        price_source=price_source(snapshot.pool),
        cluster=snapshot.pool.cluster_identity,
        machines=rows,
        leases=_lease_rows(snapshot),
        gangs=gangs,
        hangs=tuple(_hang_rows(snapshot)),
        notes=(*_notes_of_provisioners(snapshot, machines), *_losses(snapshot), *_left_over(snapshot, left)),
        unwanted=left["machine"],
    )


def read_status(reconciler: Reconciler, where: str = "") -> PoolStatus:
    """Read a pool, and return its state; `where` is `Platform.account`, which is asked for otherwise."""
    snapshot = reconciler.snapshot()
    return pool_status(snapshot, where or reconciler.platform.account(), gang_rows(reconciler.api, snapshot))


def _machine_row(snapshot: PoolSnapshot, each: MachineStatus) -> MachineRow:
    price = snapshot.price_of(each.machine.group)
    pods = [pod for pod in snapshot.pods if each.node and pod.node == each.node.name and not pod.finished]
    return MachineRow(
        pool=snapshot.pool.name,
        machine=each.machine.id,
        node=each.node.name if each.node else "",
        group=each.machine.group,
        state="cordoned" if each.state == "usable" and each.node and each.node.cordoned else each.state,
        gpus=each.node.gpus if each.node else 0,
        gpus_used=sum(pod.gpus for pod in pods),
        pods=tuple(str(pod) for pod in (*each.holders, *each.overdue)),
        runs=tuple(dict.fromkeys(f"{pod.owner.dag_id}/{pod.owner.run_id}" for pod in pods if pod.owner and pod.gpus)),
        age_seconds=round((snapshot.now - each.since).total_seconds(), 1) if each.since else None,
        cost_per_hour=price,
        cost_so_far=cost_since(price, each.since, snapshot.now),
    )


def _notes_of_provisioners(snapshot: PoolSnapshot, machines: Sequence[MachineStatus]) -> Iterator[str]:
    for group in (group for group in snapshot.groups if group.provisioner):
        who = group.provisioner
        yield from (f"{who}: {issue}" for issue in group.issues)
        if failure := group.launch_failure:
            yield f"{who} got no machine at {failure.at:%H:%M}Z: {failure.message}"
        mine = (each for each in machines if each.machine.group == group.name and each.is_there)
        yield from (f"{each}: {who}: {each.machine.lacks}" for each in mine if each.machine.lacks)


def _losses(snapshot: PoolSnapshot) -> list[str]:
    losses = losses_there(snapshot.groups, snapshot.now)
    return [f"{group.candidate}: {losses[group.name]}" for group in snapshot.groups if group.name in losses]


def _left_over(snapshot: PoolSnapshot, unwanted_now: Mapping[Kind, int]) -> Iterator[str]:
    over = [f"the demand of {lease.key}, which is over" for lease in snapshot.leases if not lease.live(snapshot.now)]
    machines, sizes = unwanted_now["machine"], unwanted_now["size"]
    left = [
        *over,
        *([plural(machines, "machine")] if machines else []),
        *([f"machines that {plural(sizes, 'group')} still asks the cloud for"] if sizes else []),
    ]
    if left:
        yield (
            f"no run wants {', nor '.join(left)}: unless a scale-down is at it, `airflow gpu reap` says more, and"
            " removes it with --yes"
        )


def _lease_rows(snapshot: PoolSnapshot) -> tuple[LeaseRow, ...]:
    return tuple(
        LeaseRow(
            pool=snapshot.pool.name,
            run=str(lease.key),
            installation=one_line(lease.key.installation),
            nodes=lease.nodes,
            until=format_time(lease.until),
            live=lease.live(snapshot.now),
            extended=lease.extended,
            budget=_budget_row(lease, snapshot.now),
            unreadable=tuple(map(str, lease.unreadable)),
        )
        for lease in snapshot.leases
    )


def _budget_row(lease: DemandLease, now: datetime) -> dict[str, Any]:
    if lease.budget is None or lease.extended:
        return {}
    budget = lease.budget
    return {
        "max_cost": budget.limit,
        "spent": round(budget.spent, 4),
        "at": format_time(budget.at),
        "left": round(budget.left_at(now), 4),
        "per_hour": budget.per_hour,
        "raised": budget.raised,
    }


def _with_unknown(value: Any) -> Any:
    if isinstance(value, dict):
        named = {key: _with_unknown(each) for key, each in value.items()}
        return {key: UNKNOWN if each is None else each for key, each in named.items()}
    if isinstance(value, tuple | list):
        return [_with_unknown(each) for each in value]
    return value


@dataclass(frozen=True, kw_only=True)
class HangRow:
    """One training that may hang: its task's log has the warning, and nothing ends it.

    Attributes:
        run: Its DAG run, as that of a LeaseRow; empty if its pods do not name one.
        pod: Its pod, or one of them, as namespace/name.
        pods: How many it has: it holds for the GPUs of all.
        since: When that began.
        shown_by: What the GPUs do.
    """

    pool: str
    run: str
    pod: str
    pods: int
    since: str
    shown_by: str

    def __str__(self) -> str:
        ranks = f", and those of its other {plural(self.pods - 1, 'pod')}," if self.pods > 1 else ""
        since = f"{datetime.fromisoformat(self.since):%Y-%m-%d %H:%MZ}"
        return f"{self.run} may hang: the GPUs of pod {self.pod}{ranks} have been {self.shown_by} since {since}"


def _hang_rows(snapshot: PoolSnapshot) -> Iterator[HangRow]:
    for pod in snapshot.pods:
        if pod.hang is not None and not pod.finished:
            yield HangRow(
                pool=snapshot.pool.name,
                run=str(pod.owner or ""),
                pod=str(pod),
                pods=pod.hang.pods,
                since=format_time(pod.hang.since),
                shown_by=pod.hang.shown_by,
            )


@dataclass(frozen=True, kw_only=True)
class GangRow:
    """One unfinished gang: pods that run together or not at all.

    Attributes:
        gang: Its Job, as namespace/name.
        nodes: How many nodes it needs.
        state: Where it runs, or why it waits.
    """

    pool: str
    gang: str
    nodes: int
    state: str


def gang_rows(api: ApiClient, snapshot: PoolSnapshot) -> tuple[GangRow, ...]:
    """Return the pool's gangs, oldest first; Jobs are read only if demand is for a gang, and if permitted."""
    if not any(lease.gang for lease in snapshot.leases):
        return ()
    try:
        jobs = [job for job in list_gang_jobs(api, snapshot.pool.name) if not job.over]
        found = admission(snapshot, jobs)
    except PermissionDenied:
        return ()
    return tuple(_rows(snapshot, jobs, found))


def _rows(snapshot: PoolSnapshot, jobs: Iterable[GangJob], found: Admission) -> Iterator[GangRow]:
    next_in = {str(job): zone for job, zone in found.admit}
    for job in jobs:
        name = str(job)
        if name in next_in:
            state = f"is about to start{_in(next_in[name])}"
        elif job.suspended:
            state = f"waits: {found.why.get(name, 'Kueue admits it')}"
        else:
            bound = sum(pod.job == job.uid and pod.node is not None for pod in snapshot.pods)
            state = f"{bound} of {job.size} pods have a node{_in(job.zone)}"
        yield GangRow(pool=snapshot.pool.name, gang=name, nodes=job.size, state=state)


def _in(zone: str) -> str:
    return f" in {zone}" if zone else ""
