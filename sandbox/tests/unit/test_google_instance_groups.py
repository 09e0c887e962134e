"""A managed instance group under any order of calls, faults and time, on a clock of the test's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from google.cloud.container_v1 import NodeConfig, NodePool
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_sandbox.cloud_events import Outbox, deliver
from gpu_sandbox.faults import Faults, Stockout
from gpu_sandbox.google.instance_groups import InstanceGroup, Surroundings
from gpu_sandbox.google.interface import GoogleTimings, Instance
from gpu_sandbox.google.members import Member
from gpu_sandbox.google.node_pool_rules import complete
from gpu_sandbox.google.quotas import Quotas
from gpu_sandbox.google.templates import template_of
from gpu_sandbox.manual_clock import ManualClock

ZONE = "us-central1-a"
TIMINGS = GoogleTimings()
LONG = 120.0


@dataclass
class Listener:
    """What the sandbox knows of: the instances that were launched and not yet terminated."""

    alive: dict[str, Instance] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)

    def instance_launched(self, instance: Instance) -> None:
        assert instance.instance_id not in self.ever
        self.ever.add(instance.instance_id)
        self.alive[instance.instance_id] = instance

    def drain_requested(self, instance: Instance) -> None:
        assert instance.instance_id in self.alive

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        assert before.instance_id == after.instance_id in self.alive

    def rebalance_recommended(self, instance: Instance) -> None:
        raise AssertionError("Compute Engine recommends no rebalancing")

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        assert instance.instance_id in self.alive

    def instance_terminated(self, instance: Instance) -> None:
        del self.alive[instance.instance_id]


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.faults, self.listener = Faults(), Listener()
        self.outbox = Outbox(self.listener)
        self.quotas = Quotas(region="us-central1", faults=self.faults)
        around = Surroundings(
            project_id="p",
            timings=TIMINGS,
            quotas=self.quotas,
            faults=self.faults,
            outbox=self.outbox,
            clock=self.clock,
        )
        pool = NodePool(name="gpu", config=NodeConfig(machine_type="g2-standard-24", spot=True))
        complete(pool, locations=[ZONE])
        template = template_of(pool, cluster_name="c")
        self.group = InstanceGroup(name="gke-c-gpu-grp", zone=ZONE, template=template, around=around, now=self.now)
        self.clock.loop(self.step, poll=0.0, name="group").start()
        self.wanted = 0
        self.asked: list[str] = []

    @property
    def now(self) -> float:
        return self.clock.now()

    def step(self) -> None:
        self.group.advance(self.now)
        deliver(self.outbox.take())

    def pick(self, index: int) -> Member | None:
        return self.group.members[index % len(self.group.members)] if self.group.members else None

    @rule(seconds=st.floats(0.01, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(size=st.integers(0, 4), drain=st.booleans())
    def resize(self, size: int, drain: bool) -> None:
        self.group.resize(size, self.now, drain=drain)
        self.wanted = size

    @precondition(lambda self: self.group.members)
    @rule(index=st.integers(0, 9))
    def delete_exactly_one(self, index: int) -> None:
        member = self.pick(index)
        assert member is not None
        others = {one.name: one.leaving for one in self.group.members if one is not member}
        self.wanted -= not member.leaving
        self.group.delete([member.name], self.now)
        assert {one.name: one.leaving for one in self.group.members if one is not member} == others

    @precondition(lambda self: self.group.members)
    @rule(index=st.integers(0, 9))
    def delete_behind_its_back(self, index: int) -> None:
        member = self.pick(index)
        assert member is not None
        if member.action == "NONE" and not member.leaving:
            self.group.delete_instance(member.name, self.now)

    @precondition(lambda self: any(member.runs and not member.leaving for member in self.group.members))
    @rule()
    def preempt(self) -> None:
        name = next(member.name for member in self.group.members if member.runs and not member.leaving)
        self.group.preempt(name, self.now)

    @precondition(lambda self: any(member.draining_until for member in self.group.members))
    @rule()
    def drained(self) -> None:
        member = next(member for member in self.group.members if member.draining_until)
        self.group.drained(member.instance_id, self.now)

    @precondition(lambda self: self.wanted <= 4)  # the quota has room for eight
    @rule(by=st.integers(1, 3))
    def request(self, by: int) -> None:
        name = f"gke-{len(self.asked)}"
        self.asked.append(name)
        assert self.group.requests.create(name, by=by, run_seconds=1e9, now=self.now) is None
        self.wanted += by

    @precondition(lambda self: self.asked)
    @rule(index=st.integers(0, 9))
    def withdraw(self, index: int) -> None:
        name = self.asked[index % len(self.asked)]
        self.wanted -= sum(self.waits(member, name) and not member.leaving for member in self.group.members)
        self.group.requests.withdraw(name, self.now)

    def waits(self, member: Member, name: str) -> bool:
        return member.is_queued and member.request is not None and member.request.name == name

    @rule(out=st.booleans())
    def stock(self, out: bool) -> None:
        self.faults.clear()
        if out:
            self.faults.add(Stockout(zone=ZONE))

    @rule(limit=st.integers(0, 8))
    def quota(self, limit: int) -> None:
        self.faults.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", max(limit, 1))

    @invariant()
    def the_size_is_what_was_asked_for(self) -> None:
        assert self.group.target_size == self.wanted

    @invariant()
    def what_is_used_is_what_is_there(self) -> None:
        counted = sum((member.counted for member in self.group.members), Counter[str]())
        for quota in self.quotas.regional():
            assert quota["usage"] == counted[str(quota["metric"])]

    @invariant()
    def what_waits_has_no_machine(self) -> None:
        assert not [member for member in self.group.members if member.is_queued and member.status]

    def teardown(self) -> None:
        self.faults.clear()
        self.time_passes(LONG)
        assert self.group.stable
        assert len(self.listener.alive) == self.wanted
        self.resize(0, drain=False)
        self.time_passes(LONG)
        assert not self.group.members
        assert not self.listener.alive
        assert self.quotas.project_wide()[0]["usage"] == 0


TestInstanceGroup = GroupMachine.TestCase
TestInstanceGroup.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
