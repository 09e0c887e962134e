"""Auto Scaling groups that do what AWS's do to a careless caller: launch late, take any machine they like, end none
that is still being launched, and show what was just changed as it was before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import Group, LaunchFailure, Machine, MachineState, Plan, Platform, Report
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.pools import Candidate
from tests.unit.scaling.model.actors import Actors

T = TypeVar("T")

STALE = 10.0
"""How many seconds old a read may be. EC2's guide asks for waits of "a couple of seconds" at first."""

LAUNCH = timedelta(seconds=20)
"""How long a machine is pending, and is not ended for who asks."""


Kind = Literal["own groups", "groups of others", "autoscaler"]

SPECS: dict[Kind, dict[str, Any]] = {
    "own groups": {"instance_types": ("g6.xlarge",)},
    "groups of others": {"manage": "scale", "node_groups": ("x", "y")},
    "autoscaler": {"instance_types": ("g6.xlarge",), "scaling": "autoscaler"},
}


@dataclass
class Asg:
    """One group: its size, its machines (id -> when launched), and those on their way out.

    Attributes:
        keeps: The smallest size, which its owner gave it.
    """

    candidate: Candidate
    keeps: int = 0
    owned: bool = True
    desired: int = 0
    machines: dict[str, datetime] = field(default_factory=dict)
    terminating: set[str] = field(default_factory=set)
    launching: int = 0
    out_of_stock: bool = False
    failure: LaunchFailure | None = None
    switch_at: datetime | None = None
    switched: bool = False

    @property
    def live(self) -> list[str]:
        return [machine for machine in self.machines if machine not in self.terminating]


def groups_of(pool: EksGpuPool) -> list[Asg]:
    """Return a pool's own groups, or those of others that it may use; of these one keeps a machine."""
    if pool.manage != "scale":
        return [Asg(candidate=each) for each in pool.candidates(pool.zones or ("us-west-2a", "us-west-2b"))]
    candidates = [
        Candidate(group=name, zone="us-west-2a", instance_type="g6.xlarge", market="ON_DEMAND")
        for name in pool.node_groups
    ]
    return [
        Asg(candidate=each, owned=False, keeps=keeps, desired=keeps)
        for each, keeps in zip(candidates, (1, 0), strict=True)
    ]


class Cloud:
    """All groups of one pool. `when_told` is called when an actor has set a size or a switch.

    Attributes:
        shown: What every read sees, whatever happens; None: what there is, or was some seconds ago.
    """

    def __init__(self, pool: EksGpuPool, asgs: Sequence[Asg], actors: Actors, *, stale: int | None = None) -> None:
        self._actors = actors
        self._draw = random.Random(stale) if stale is not None else None
        self.shown: Mapping[str, Asg] | None = None
        self._past: list[tuple[float, dict[str, Asg]]] = []
        self._past_at = 0.0
        self._pool = pool
        self.asgs = {asg.candidate.group: asg for asg in asgs}
        self.when_told: Callable[[], None] = lambda: None
        self._count = 0

    def remember(self) -> None:
        """Keep how things stood until now; called when time has moved and nothing else has happened yet."""
        self._past.append((self._past_at, self.copied()))
        self._past = [each for each in self._past if each[0] >= self._past_at - STALE] or self._past[-1:]
        self._past_at = self._actors.time

    def copied(self) -> dict[str, Asg]:
        return {
            name: replace(asg, machines=dict(asg.machines), terminating=set(asg.terminating))
            for name, asg in self.asgs.items()
        }

    def seen(self) -> Mapping[str, Asg]:
        """The groups as the next read sees them: as they are, or as they were at some time in the last seconds."""
        if self.shown is not None:
            return self.shown
        if self._draw is None or self._draw.random() < 0.5:
            return self.asgs
        then = self._actors.time - self._draw.uniform(0, STALE)
        if then >= self._past_at:
            return self.asgs
        older = [asgs for at, asgs in self._past if at <= then]
        return older[-1] if older else self._past[0][1] if self._past else self.asgs

    def launch_begins(self, name: str) -> bool:
        asg = self.asgs[name]
        if asg.desired <= len(asg.live) + asg.launching:
            return False
        asg.launching += 1
        return True

    def launch_ends(self, name: str) -> str | None:
        """A machine appears, even if it is not asked for any more; or there is none to have."""
        asg = self.asgs[name]
        if not asg.launching:
            return None
        asg.launching -= 1
        if asg.out_of_stock:
            now = self._actors.clock.now()
            asg.failure = LaunchFailure(at=now, message="InsufficientInstanceCapacity", kind="out_of_stock")
            return None
        asg.failure = None
        self._count += 1
        self._actors.note(f"machine i-{self._count} is launched in {name}")
        machine = f"i-{self._count}"
        asg.machines[machine] = self._actors.clock.now()
        return machine

    def surplus(self, name: str) -> list[str]:
        """Machines of which the group takes any, because its size says one less."""
        asg = self.asgs[name]
        return asg.live if asg.desired < len(asg.live) else []

    def asg_of(self, machine: str) -> Asg | None:
        return next((asg for asg in self.asgs.values() if machine in asg.machines), None)


class ModelPlatform(Platform):
    """The cloud as one actor's platform: reads pause the actor, writes come right after the lock's check.

    Between that check and the write no other actor acts: nothing could make such a gap safe but the cloud itself,
    and in production it is a few instructions long.
    """

    def __init__(self, cloud: Cloud, actors: Actors, terminate: Any) -> None:
        self.cloud = cloud
        self._actors = actors
        self._terminate = terminate

    def observe(self) -> tuple[Group, ...]:
        self._actors.pause()
        return tuple(self._group(name, asg) for name, asg in self.cloud.seen().items())

    def _group(self, name: str, asg: Asg) -> Group:
        machines = tuple(
            Machine(
                id=machine,
                group=name,
                state=self._state(asg, machine),
                launched_at=launched,
            )
            for machine, launched in asg.machines.items()
        )
        return Group(
            name=name,
            candidate=asg.candidate,
            status="active",
            desired=asg.desired,
            max_size=self.cloud._pool.max_nodes,
            machines=machines,
            switch_at=asg.switch_at,
            keeps=asg.keeps,
            owned=asg.owned,
            launch_failure=asg.failure,
            launching=bool(asg.launching),
        )

    def _state(self, asg: Asg, machine: str) -> MachineState:
        if machine in asg.terminating:
            return "terminating"
        return "pending" if self._actors.clock.now() < asg.machines[machine] + LAUNCH else "running"

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:
        def write() -> None:
            for name in groups:
                self.cloud.asgs[name].switch_at = at
            self.cloud.when_told()

        self._write(write)

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:
        def write() -> None:
            for name in groups:
                self.cloud.asgs[name].switch_at = None
            self.cloud.when_told()

        self._write(write)

    def grow(self, sizes: Mapping[str, int]) -> None:
        def write() -> None:
            for name, size in sizes.items():
                self._actors.note(f"{name} is set to {size}")
                self.cloud.asgs[name].desired = size
                self.cloud.asgs[name].switched = False
            self.cloud.when_told()

        self._write(write)

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        def write() -> tuple[Machine, ...]:
            busy = []
            for machine in machines:
                asg = self.cloud.asgs[machine.group]
                if machine.id in asg.live:
                    if self._state(asg, machine.id) == "pending":
                        self._actors.note(f"machine {machine.id} is not ended yet")
                        busy.append(machine)
                        continue
                    if asg.desired <= asg.keeps:
                        raise CloudError(f"{machine.group} would have less than its minimum size.")
                    asg.desired -= 1
                    self._terminate(machine.id)
            return tuple(busy)

        return self._write(write)

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        def write() -> dict[str, int]:
            sizes = {}
            for name in groups:
                asg = self.cloud.asgs[name]
                if not asg.launching and asg.desired > max(asg.keeps, len(asg.live)):
                    asg.desired = sizes[name] = max(asg.keeps, len(asg.live))
                    self._actors.note(f"{name} is shrunk to {asg.desired}")
            return sizes

        return self._write(write)

    def _write(self, write: Callable[[], T]) -> T:
        return self._actors.request(write, lambda: CloudError("The cloud did not answer."))

    def account(self) -> str:
        return "the model's account"

    def cluster_access(self) -> Any:
        raise NotImplementedError

    def plan(self, nodes: int) -> Plan:
        raise NotImplementedError

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        raise NotImplementedError

    def delete(self, report: Report) -> None:
        raise NotImplementedError
