"""Which of a pool's gangs may create their pods now, and in which zone: strictly the oldest first; and GangQueue.

A gang is a Job that is created suspended. It is admitted when all of its nodes are free in one zone: two gangs that
each hold half of the nodes would wait for each other forever. A gang that does not get all of them, because another pod
took one or one was lost, is suspended again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from airflow_gpu_provider.clouds.backoff import ordinal
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.node import ZONE_LABEL, Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.errors import ClusterUnreachable, DemandLockLost, GpuError
from airflow_gpu_provider.scaling.decide.decisions import Decision
from airflow_gpu_provider.scaling.decide.gangs import gang_placements, zones_in_words
from airflow_gpu_provider.scaling.decide.snapshot import (
    READY_WITHIN,
    PoolSnapshot,
    usable_nodes,
    waits_for_gpus,
)
from airflow_gpu_provider.scaling.state.gang_jobs import GangJob
from airflow_gpu_provider.scaling.state.gang_requests import admit, list_gang_jobs, suspend

WHOLE_WITHIN = timedelta(minutes=2)
"""How long after its admission all of a gang's pods may take to get a node; longer if nodes are added for pods."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What to do about a pool's gangs now.

    Attributes:
        admit: Which may create their pods, and in which zone; "" if nodes are added for them, or nodes have no zone.
        suspend: Which did not get all their nodes, and have to wait again.
        why: Why each of the others waits, as text, by "namespace/name".
    """

    admit: tuple[tuple[GangJob, str], ...] = ()
    suspend: tuple[GangJob, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.admit or self.suspend)


def admission(snapshot: PoolSnapshot, jobs: Iterable[GangJob], leaving: Collection[str] = ()) -> Admission:
    """Return what to do about the pool's gangs now; `leaving` are nodes about to be cordoned or removed."""
    there = sorted((job for job in jobs if not job.over), key=lambda job: (job.created_at, job.namespace, job.name))
    runs = {lease.key.hash for lease in snapshot.live_leases}
    admitted = [job for job in there if not job.suspended]
    waiting = [job for job in there if job.suspended and not job.queued_elsewhere]
    queue = [job for job in waiting if job.run in runs]
    late = tuple(job for job in there if _is_late(snapshot, job))
    unwanted = {
        str(job): "its run wants no nodes any more, and it does not start" for job in waiting if job not in queue
    }
    room = _Room(snapshot, [node for node in usable_nodes(snapshot) if node.name not in leaving], admitted)
    admit: list[tuple[GangJob, str]] = []
    for job in queue:
        zone = _zone_for(snapshot, job, room)
        if zone is None:
            break
        room.admit(job, zone)
        admit.append((job, zone))
    left = queue[len(admit) :]
    why = {str(job): _why(room, job, left) for job in left}
    return Admission(admit=tuple(admit), suspend=late, why={**why, **unwanted})


def _zone_for(snapshot: PoolSnapshot, job: GangJob, room: _Room) -> str | None:
    """Return the zone in which the gang may start; None if it has to wait.

    If nodes are added for pods, one gang at a time requests the missing ones.
    """
    if job.active:
        return None  # pods of its last admission are still being deleted
    free = room.free(job)
    zones = [zone for zone in free if room.holds(job, zone)]
    if zones:
        own = [
            seat.zone for key, seat in gang_placements(snapshot, snapshot.supply).by_key.items() if key.hash == job.run
        ]
        return min(zones, key=lambda zone: (zone not in own, -free[zone], zone))
    return "" if snapshot.pool.nodes_come_with_pods and not room.is_awaited else None


def _is_late(snapshot: PoolSnapshot, job: GangJob) -> bool:
    """Return True if this package admitted the gang, and one of its pods has found no node in time."""
    if job.suspended or job.queued_elsewhere or job.admitted_at is None:
        return False
    within = WHOLE_WITHIN + (READY_WITHIN if snapshot.pool.nodes_come_with_pods else timedelta(0))
    if snapshot.now - job.admitted_at < within:
        return False
    unbound = any(pod.job == job.uid and pod.node is None and not pod.finished for pod in snapshot.pods)
    return unbound or job.active + job.ended < job.wants


def _why(room: _Room, job: GangJob, waiting: Sequence[GangJob]) -> str:
    free = {zone: number for zone, number in room.free(job).items() if number}
    place = waiting.index(job) + 1
    many = f"{ordinal(place)} of {len(waiting)} gangs in the queue; " if len(waiting) > 1 else ""
    first = "; the older gangs come first" if place > 1 and max(free.values(), default=0) >= job.size else ""
    older = [str(pod) for pod in room.older_pods(job)]
    also = f"; pod {older[0]}, which is older, waits for a node too" if older else ""
    again = ""
    if job.admitted_at:
        again = f"; it was admitted at {job.admitted_at:%H:%M:%S}Z, and then suspended again"
    if job.active:
        again += ", the others are being deleted"
    counts = dict(sorted(free.items(), key=lambda item: (-item[1], item[0])))
    return f"{many}needs {job.size} free nodes of one zone, {zones_in_words(counts)}{first}{also}{again}"


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """Pods that will soon be bound, each to another node that is not known yet.

    Attributes:
        pods: How many.
        gpus: What each of them takes.
        zone: Where; "" anywhere.
        own: The nodes that other pods of its gang already have.
        selector: The labels that its nodes must have.
        is_gang: All of them must find a node.
    """

    pods: int
    gpus: int
    zone: str = ""
    own: frozenset[str] = frozenset()
    selector: frozenset[tuple[str, str]] = frozenset()
    is_gang: bool = True


class _Room:
    """The free GPUs on each node, and the pods that are about to take some of them."""

    def __init__(self, snapshot: PoolSnapshot, nodes: Iterable[Node], admitted: Sequence[GangJob]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._pods = snapshot.pods
        used: Counter[str] = Counter()
        for pod in snapshot.pods:
            if pod.node and not pod.finished:
                used[pod.node] += pod.gpus
        self._free = {name: node.gpus - used[name] for name, node in self._nodes.items()}
        self._gangs = {job.uid for job in admitted}
        self._claims = [self._claim(job, job.zone) for job in admitted]

    @property
    def is_awaited(self) -> bool:
        """Whether pods of an admitted gang still wait for a node."""
        return any(claim.pods for claim in self._claims)

    def admit(self, job: GangJob, zone: str) -> None:
        """Count the pods of a gang that is admitted now."""
        self._claims.append(self._claim(job, zone))

    def free(self, job: GangJob) -> dict[str, int]:
        """Return how many nodes each zone has for the gang, whichever of them older gangs' pods take."""
        claims = [*self._claims, *self._older(job)]
        zones = {node.zone for node in self._nodes.values()}
        return {zone: self._sure_of(self._claim(job, zone), zone, claims) for zone in zones}

    def holds(self, job: GangJob, zone: str) -> bool:
        """Return True if the gang finds all of its nodes in the zone, and so do the gangs admitted earlier."""
        claims = [*self._claims, *self._older(job), self._claim(job, zone)]
        there = [claim for claim in claims if claim.is_gang and claim.zone == zone]
        return all(self._sure_of(each, zone, [one for one in claims if one is not each]) >= each.pods for each in there)

    def older_pods(self, job: GangJob) -> Iterator[Pod]:
        """Yield pods outside gangs that have waited longer than this gang, and fit on a node."""
        for pod in self._pods:
            is_older = pod.job not in self._gangs and pod.created_at < job.created_at
            if is_older and waits_for_gpus(pod) and any(free >= pod.gpus for free in self._free.values()):
                yield pod

    def _older(self, job: GangJob) -> list[_Claim]:
        return [_Claim(pods=1, gpus=pod.gpus, is_gang=False) for pod in self.older_pods(job)]

    def _claim(self, job: GangJob, zone: str) -> _Claim:
        bound = [pod for pod in self._pods if pod.job == job.uid and pod.node and not pod.finished]
        missing = job.size if job.suspended else max(0, job.wants - job.ended - len(bound))
        return _Claim(
            pods=missing,
            gpus=max(1, job.gpus),
            zone=zone,
            own=frozenset(pod.node for pod in bound if pod.node),
            selector=frozenset(job.node_selector),
        )

    def _sure_of(self, claim: _Claim, zone: str, others: Iterable[_Claim]) -> int:
        """Return how many nodes of the zone are left for a claim's pods, whichever of them the others' pods take."""
        beside = [other for other in others if other.zone in (zone, "")]
        most = sum(other.gpus for other in beside if other.pods)
        fit = [name for name in self._nodes if self._fits(claim, zone, name)]
        with_room_for_all = sum(self._free[name] >= claim.gpus + most for name in fit)
        return with_room_for_all + max(0, len(fit) - with_room_for_all - sum(other.pods for other in beside))

    def _fits(self, claim: _Claim, zone: str, name: str) -> bool:
        node = self._nodes[name]
        has_labels = claim.selector <= {*node.labels.items(), (ZONE_LABEL, node.zone)}
        return node.zone == zone and name not in claim.own and has_labels and self._free[name] >= claim.gpus


@dataclass(frozen=True, kw_only=True)
class GangUpdate:
    """What a check of a pool's gangs reports to the waits for them.

    Attributes:
        why: Why each suspended gang waits, as text, by "namespace/name".
        errors: What the cluster refused, such as a missing permission; by the gang's "namespace/name", "" for all
            gangs.
    """

    why: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, GpuError] = field(default_factory=dict)
    log_lines: tuple[str, ...] = ()


class GangQueue:
    """One check of a pool's gangs. A refusal is reported to the waits for gangs, and fails no reconcile."""

    def __init__(self, api: ApiClient, snapshot: PoolSnapshot, decision: Decision) -> None:
        self._api = api
        self._now = snapshot.now
        self._errors: dict[str, GpuError] = {}
        self._log_lines: list[str] = []
        try:
            jobs = list_gang_jobs(api, snapshot.pool.name)
        except ClusterUnreachable:
            raise
        except GpuError as error:
            self._found, self._errors = Admission(), {"": error}
        else:
            going = {machine.id for machine in (*decision.release, *decision.later)}
            leaving = {node.name for node in snapshot.nodes if node.machine in going} | {*decision.cordon}
            self._found = admission(snapshot, jobs, leaving)

    @property
    def is_empty(self) -> bool:
        return self._found.is_empty

    @property
    def update(self) -> GangUpdate:
        return GangUpdate(why=self._found.why, errors=self._errors, log_lines=tuple(self._log_lines))

    def move_on(self, check: Callable[[], None]) -> None:
        """Carry out the admissions and suspensions; `check` is the pool lock's, which the caller holds."""
        for job in self._found.suspend:
            why = "not all of its pods found a node in time"
            self._write(check, job, partial(suspend, self._api, job), f"gang {job} is suspended again: {why}")
        for job, zone in self._found.admit:
            where = f" in {zone}" if zone else ""
            line = f"gang {job} may start: {job.size} nodes{where}"
            self._write(check, job, partial(admit, self._api, job, zone, self._now), line)

    def _write(self, check: Callable[[], None], job: GangJob, write: Callable[[], None], line: str) -> None:
        check()
        try:
            write()
        except (ObjectChanged, ObjectNotFound):
            return  # the next check decides again
        except (ClusterUnreachable, DemandLockLost):
            raise
        except GpuError as error:
            self._errors[str(job)] = error
            return
        self._log_lines.append(line)
