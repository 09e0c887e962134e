"""Managed instance groups: how a target size becomes instances, step by step, and what stands in the way."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpu_sandbox.clock import Clock
from gpu_sandbox.cloud_events import Outbox
from gpu_sandbox.faults import Faults
from gpu_sandbox.google.compute_operations import ComputeOperation, ComputeOperations
from gpu_sandbox.google.interface import GoogleTimings, Instance, ScalableGroup
from gpu_sandbox.google.machine_types import MACHINE_TYPES, NEVER_ON_DEMAND
from gpu_sandbox.google.members import LaunchError, Member
from gpu_sandbox.google.quotas import Quotas
from gpu_sandbox.google.resize_requests import QUOTA_EXCEEDED, STOCKOUT, ResizeRequest, ResizeRequests
from gpu_sandbox.google.templates import Template

_ERRORS = {
    "IP_SPACE_EXHAUSTED": "IP space of '{subnet}' is exhausted.",
    "PERMISSIONS_ERROR": "Required 'compute.images.useReadOnly' permission for '{project}'",
    "CONDITION_NOT_MET": "Constraint constraints/compute.requireShieldedVm violated for {project}.",
}
"""Words of launches that fail otherwise than for capacity; cluster-autoscaler's GCE client names the codes."""
RESERVED_ELSEWHERE = "CONDITION_NOT_MET"
_FULL = (
    "All automatic reservations in your project, or shared with your project, are fully consumed.",
    "Specified reservation '{}' does not have available resources for the request.",
)
"""Words of a launch for which any reservation, and of one for which the one named, has no machine left (the same)."""
_KEPT_ERRORS = 100
_SUFFIX = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(kw_only=True)
class Surroundings:
    """What the groups of a project share."""

    project_id: str
    timings: GoogleTimings
    quotas: Quotas
    faults: Faults
    outbox: Outbox[Instance]
    clock: Clock
    operations: ComputeOperations = field(default_factory=ComputeOperations)
    random: random.Random = field(default_factory=lambda: random.Random(0))


class InstanceGroup:
    """One zone's instances of a node pool. `advance`, called by the clock, makes `target_size` true."""

    def __init__(self, *, name: str, zone: str, template: Template, around: Surroundings, now: float) -> None:
        self.name = name
        self.zone = zone
        self.template = template
        self.target_size = 0
        self.id = str(secrets.randbelow(9 * 10**18) + 10**18)
        self.created_at = now
        self.members: list[Member] = []
        self.errors: list[LaunchError] = []
        self.requests = ResizeRequests(self)
        self._around = around
        self._reacts_at = 0.0

    # What is asked of it

    def resize(self, size: int, now: float, *, drain: bool = False) -> None:
        """Set the target size. A smaller one takes instances away: first those that do not run, then any."""
        self.target_size = size
        self._reacts_at = now + self._around.timings.group_reaction
        staying = [member for member in self.members if not member.leaving]
        for member in self._least_needed(staying)[: max(len(staying) - size, 0)]:
            self._let_go(member, now, drain=drain)

    def add_member(self, request: ResizeRequest) -> None:
        """Grow by a managed instance that comes with the others of a resize request."""
        self.members.append(Member(name=self._new_name(), request=request))
        self.target_size += 1

    def set_template(self, template: Template) -> None:
        """What its instances are from now on; labels and taints reach those that are there, as in GKE."""
        self.template = template
        for member in self.members:
            if member.announced is not None:
                after = self._announcement(member)
                if (after.labels, after.taints) != (member.announced.labels, member.announced.taints):
                    after = replace(member.announced, labels=after.labels, taints=after.taints)
                    self._around.outbox.instance_relabelled(member.announced, after)
                    member.announced = after

    def delete(self, names: Iterable[str], now: float) -> None:
        """Delete exactly these members, and lower the target size by as many."""
        for name in names:
            member = self.member(name)
            if member is not None and not member.leaving:
                self.target_size -= 1
            if member is not None:
                self._let_go(member, now, drain=False)

    def drain(self, name: str, now: float, *, keeps_size: bool) -> None:
        """Cordon and drain this member, then end it; another one comes for it where the size is kept."""
        member = self.member(name)
        if member is not None and not member.leaving:
            self.target_size -= not keeps_size
            self._let_go(member, now, drain=True)

    def delete_instance(self, name: str, now: float) -> None:
        """Its instance was deleted behind the group's back, which makes it anew: the target size stays."""
        member = self.member(name)
        if member is not None and member.status:
            self._begin(member, "delete", now)
            self._end_instance(member, now)
            self._make_anew(member, now)

    def drained(self, instance_id: str, now: float) -> None:
        """Its pods are gone."""
        for member in self.members:
            if member.instance_id == instance_id and member.draining_until is not None:
                self._begin_deletion(member, now)

    def preempt(self, name: str, now: float) -> None:
        """Give a spot instance its notice. ValueError if it is no running spot instance of this group."""
        member = self.member(name)
        if member is None or member.announced is None or self.template.market != "spot" or member.leaving:
            raise ValueError(f"{name} is no running spot instance of {self.name}")
        if member.taken_at is None:
            member.taken_at = now + self._around.timings.preemption_notice
            at = datetime.fromtimestamp(member.taken_at, UTC)
            self._around.outbox.spot_notice(member.announced, at=at)

    def end_by_host(self, name: str, event: str, now: float) -> None:
        """End an instance by an event of its host, without a notice.

        Compute Engine starts a standard one again elsewhere, with the same name and number; the group makes a spot one
        anew. ValueError if it is no running instance of this group.
        """
        member = self.member(name)
        if member is None or member.announced is None or member.leaving:
            raise ValueError(f"{name} is no running instance of {self.name}")
        counted = member.counted
        self._begin(member, f"compute.instances.{event}", now)
        if self.template.market == "spot":
            self._end_instance(member, now)
            self._make_anew(member, now)
            return
        member.counted = Counter()
        self._end_instance(member, now)
        member.counted, member.status = counted, "STAGING"
        member.deadline = now + self._around.timings.instance_create
        self._begin(member, "compute.instances.automaticRestart", now)

    # What it is

    @property
    def url(self) -> str:
        return self.url_of("instanceGroupManagers", self.name)

    @property
    def url_in_events(self) -> str:
        """The name by which the autoscaler calls it."""
        return self.url_of("instanceGroups", self.name)

    def url_of(self, kind: str, name: str) -> str:
        """The full name of something in the group's zone."""
        project = f"https://www.googleapis.com/compute/v1/projects/{self._around.project_id}"
        return f"{project}/zones/{self.zone}/{kind}/{name}"

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)

    @property
    def quotas(self) -> Quotas:
        return self._around.quotas

    @property
    def launch_retry(self) -> float:
        return self._around.timings.launch_retry

    @property
    def stable(self) -> bool:
        """Whether there is what there should be."""
        return len(self.members) == self.target_size and all(
            member.runs and member.action == "NONE" and not member.leaving for member in self.members
        )

    @property
    def running(self) -> int:
        return sum(member.runs and not member.leaving for member in self.members)

    def scalable(self, *, min_size: int, max_size: int, pool_max_size: int) -> ScalableGroup:
        """As its autoscaler sees it."""
        error = next((member.error for member in self.members if member.error and not member.leaving), None)
        template = self.template
        machine = MACHINE_TYPES.get(template.machine_type)
        return ScalableGroup(
            name=self.url_in_events,
            node_pool=template.node_pool,
            pool_max_size=pool_max_size,
            min_size=min_size,
            max_size=max_size,
            target=self.target_size,
            machines=tuple(member.name for member in self.members if member.status),
            labels=template.labels_in(self.zone),
            taints=template.taints,
            vcpus=template.vcpus,
            memory_bytes=int((machine.memory_gib if machine else 0) * 2**30),
            gpus=template.gpus,
            queued=template.queued,
            error=(error.code, f"Instance '{error.instance}' creation failed: {error.message}") if error else None,
        )

    def longest_failing(self) -> tuple[float, LaunchError] | None:
        """Since when the member that waits longest could not be had, and its last error."""
        failing = [
            (member.failing_since, member.error)
            for member in self.members
            if member.failing_since and member.error and not member.leaving
        ]
        if not failing:
            return None
        return min(failing, key=lambda pair: pair[0])

    # Steps

    def advance(self, now: float) -> None:
        self.requests.advance(now)
        for member in list(self.members):
            self._advance_member(member, now)
        if self.reached(self._reacts_at):
            missing = self.target_size - sum(not member.leaving for member in self.members)
            for _ in range(missing):
                self.members.append(Member(name=self._new_name()))

    def _advance_member(self, member: Member, now: float) -> None:
        if member.draining_until is not None and self.reached(member.draining_until):
            self._begin_deletion(member, now)
        elif member.action == "DELETING":
            if self.reached(member.deadline):
                self._end_instance(member, now)
                self.members.remove(member)
        elif not member.status:
            if self.reached(member.deadline) and not member.is_queued:
                self.launch(member, now)
        elif member.status == "STAGING":
            if self.reached(member.deadline):
                self._run(member, now)
        elif member.runs:
            self._advance_running(member, now)

    def reached(self, moment: float) -> bool:
        """As `Clock.reached`."""
        return self._around.clock.reached(moment)

    def _advance_running(self, member: Member, now: float) -> None:
        if member.taken_at is not None and self.reached(member.taken_at):
            self._begin(member, "compute.instances.preempted", now)
            self._end_instance(member, now)
            self._make_anew(member, now)
            return
        if member.run_ends_at is not None and self._around.faults.deadline_reached(member.run_ends_at):
            if self.template.is_preemptible:
                self.preempt(member.name, now)
            else:  # a group whose machines have a limit does not make them anew: its target goes down with them
                self.delete([member.name], now)

    def launch(self, member: Member, now: float) -> None:
        """Begin to make its instance, or note why there is none."""
        needs = self.needs()
        if refused := self.refused(1 + sum(bool(each.status) for each in self.members)):
            self._fail(member, *refused, now)
        elif exceeded := self._around.quotas.take(needs):
            self._fail(member, QUOTA_EXCEEDED, exceeded.message, now)
        else:
            member.status = "STAGING"
            member.counted = needs
            member.created_at = now
            member.instance_id = str(secrets.randbelow(9 * 10**18) + 10**18)
            member.failing_since = member.error = None
            member.deadline = now + self._around.timings.instance_create
            self._begin(member, "insert", now)

    def needs(self) -> Counter[str]:
        """What one instance takes of which quota."""
        template = self.template
        return self._around.quotas.needs(
            accelerator=template.accelerator,
            gpus=template.accelerator_count,
            vcpus=template.vcpus,
            market="spot" if template.flex_start else template.market,
            max_run_seconds=template.max_run_seconds,
        )

    def refused(self, number: int) -> tuple[str, str] | None:
        """The code and message with which the launch of the group's `number`th instance fails now, but for quotas."""
        if self._out_of_stock(number) and self.template.reservation is not None:
            return RESERVED_ELSEWHERE, _FULL[bool(self.template.reservation)].format(self.template.reservation)
        if self._out_of_stock(number):
            zone = f"projects/{self._around.project_id}/zones/{self.zone}"
            return (
                STOCKOUT,
                f"The zone '{zone}' does not have enough resources available to fulfill the request.  "
                "Try a different zone, or try again later.",
            )
        if code := self._launch_error():
            subnet = f"projects/{self._around.project_id}/regions/{self.zone.rpartition('-')[0]}/subnetworks/default"
            project = f"projects/{self._around.project_id}"
            return code, _ERRORS.get(code, "The launch failed.").format(subnet=subnet, project=project)
        return None

    def _out_of_stock(self, number: int) -> bool:
        """Large types are never there on demand."""
        template = self.template
        on_demand = template.market == "on-demand" and not template.flex_start and template.reservation is None
        if on_demand and template.machine_type in NEVER_ON_DEMAND:
            return True
        return any(self._around.faults.out_of_stock(**launch, number=number) for launch in self._launches())

    def _launch_error(self) -> str | None:
        return next(filter(None, map(lambda each: self._around.faults.launch_error(**each), self._launches())), None)

    def _launches(self) -> list[dict[str, str]]:
        """A fault's type may be the machine's or the accelerator's."""
        kinds = (self.template.machine_type, self.template.accelerator)
        return [{"zone": self.zone, "instance_type": kind, "market": self.template.market} for kind in kinds if kind]

    def _fail(self, member: Member, code: str, message: str, now: float) -> None:
        member.error = LaunchError(code=code, message=message, instance=member.name, at=now)
        member.failing_since = member.failing_since or now
        member.deadline = now + self._around.timings.launch_retry
        self.errors = [*self.errors, member.error][-_KEPT_ERRORS:]

    def _run(self, member: Member, now: float) -> None:
        member.status, member.action = "RUNNING", "NONE"
        member.running_since = now
        self._finish(member, now)
        asked = member.request.run_seconds if member.request else None
        if lives := [life for life in (self.template.life_seconds, asked) if life is not None]:
            member.run_ends_at = self._around.faults.deadline_seconds() + min(lives)
        member.announced = self._announcement(member)
        self._around.outbox.instance_launched(member.announced)

    def _announcement(self, member: Member) -> Instance:
        return self.template.instance(
            instance_id=member.instance_id,
            name=member.name,
            zone=self.zone,
            project_id=self._around.project_id,
            group=self.name,
            request=member.request.name if member.request else "",
        )

    def _let_go(self, member: Member, now: float, *, drain: bool) -> None:
        if drain and member.announced is not None and member.draining_until is None and member.action != "DELETING":
            member.draining_until = now + self._around.timings.drain_timeout
            self._around.outbox.drain_requested(member.announced)
        elif not drain or member.announced is None:
            self._begin_deletion(member, now)

    def _begin_deletion(self, member: Member, now: float) -> None:
        if member.action == "DELETING":
            return
        member.action, member.draining_until = "DELETING", None
        member.deadline = now + (self._around.timings.instance_delete if member.status else 0.0)
        if member.status:
            member.status = "STOPPING"
            self._begin(member, "delete", now)

    def _end_instance(self, member: Member, now: float) -> None:
        self._finish(member, now)
        self._around.quotas.give_back(member.counted)
        member.counted = Counter()
        announced, member.announced = member.announced, None
        if announced is not None:
            self._around.outbox.instance_terminated(announced)

    def _begin(self, member: Member, kind: str, now: float) -> None:
        """Begin an operation on a member's instance, which ends the one before it."""
        self._finish(member, now)
        url = self.url_of("instances", member.name)
        operation = ComputeOperation(kind=kind, target=url, target_id=member.instance_id, started_at=now)
        member.under_way = self._around.operations.add(operation)

    def _finish(self, member: Member, now: float) -> None:
        if member.under_way is not None:
            member.under_way.ended_at, member.under_way = now, None

    def _make_anew(self, member: Member, now: float) -> None:
        """As a group does with an instance that was lost: the same name, another instance."""
        member.action, member.status, member.instance_id = "RECREATING", "", ""
        member.running_since = member.run_ends_at = member.taken_at = None
        member.deadline = now + self._around.timings.instance_delete

    def _least_needed(self, members: list[Member]) -> list[Member]:
        shuffled = list(members)
        self._around.random.shuffle(shuffled)
        return sorted(shuffled, key=lambda member: member.runs)

    def _new_name(self) -> str:
        base = self.name.removesuffix("-grp")
        while True:
            name = f"{base}-{''.join(self._around.random.choices(_SUFFIX, k=4))}"
            if self.member(name) is None:
                return name
