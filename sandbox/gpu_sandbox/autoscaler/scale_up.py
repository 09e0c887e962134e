"""Which groups grow for the pods that found no room, and why the others do not: pure decisions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpu_sandbox.autoscaler.fitting import Pod, less, requests, why_not
from gpu_sandbox.autoscaler.groups import NodeGroup, NodeTemplate, SharedLimit

EXPENDABLE_BELOW = -10
"""Pods with a lower priority are not worth a machine: CA's --expendable-pods-priority-cutoff."""
BACKED_OFF = "in backoff after failed scale-up"
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
"""The annotation of a pod whose nodes a ProvisioningRequest brings: by itself it brings none."""
_AT_MAX = "max node group size reached"
# By how much, as a share, groups that are alike may differ; in all other resources they are equal.
_MAY_DIFFER = {"memory": Decimal("0.015"), "cpu": Decimal("0.05"), "ephemeral-storage": Decimal("0.05")}


@dataclass(frozen=True, kw_only=True)
class Increase:
    """One group's new size."""

    group: str
    before: int
    after: int
    max_size: int

    def __str__(self) -> str:
        return f"{{{self.group} {self.before}->{self.after} (max: {self.max_size})}}"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A scale-up that has not brought all its nodes yet."""

    increase: int
    since: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What grows, for which pods, and for each pod that no group helps the reasons by how often."""

    increases: tuple[Increase, ...] = ()
    helped: tuple[Pod, ...] = ()
    refused: tuple[tuple[Pod, Mapping[str, int]], ...] = ()


@dataclass
class _Room:
    """A node, there or to come, and what is left of it."""

    template: NodeTemplate
    free: dict[str, Decimal]

    def take(self, pod: Pod) -> bool:
        if why_not(pod, self.template, free=self.free) is not None:
            return False
        self.free = less(self.free, requests(pod))
        return True


class _Limits:
    """How far groups may grow, each by itself and those of one pool together."""

    def __init__(self, groups: Sequence[NodeGroup]) -> None:
        self.sizes = {group.name: group.target for group in groups}
        self._in_pool: Counter[str] = Counter()
        for group in groups:
            if group.shared:
                self._in_pool[group.shared.pool] += group.target

    def of(self, group: NodeGroup) -> int:
        """How many nodes more it may have."""
        own = group.max_size - self.sizes[group.name]
        shared = group.shared.max_size - self._in_pool[group.shared.pool] if group.shared else own
        return max(min(own, shared), 0)

    def grow(self, group: NodeGroup) -> None:
        self.sizes[group.name] += 1
        if group.shared:
            self._in_pool[group.shared.pool] += 1

    def together(self, groups: Sequence[NodeGroup]) -> int:
        """How many nodes more all of them may have."""
        alone = sum(self.of(group) for group in groups if not group.shared)
        by_pool: dict[SharedLimit, int] = {}
        for group in groups:
            if group.shared:
                by_pool[group.shared] = by_pool.get(group.shared, 0) + self.of(group)
        return alone + sum(min(most, limit.max_size - self._in_pool[limit.pool]) for limit, most in by_pool.items())


@dataclass(frozen=True, kw_only=True)
class _Option:
    group: NodeGroup
    nodes: int
    pods: tuple[Pod, ...]


def worth_a_machine(pods: Iterable[Pod]) -> list[Pod]:
    """Without the expendable, those for which the scheduler makes room by preemption, and those with a request."""
    return [
        pod
        for pod in pods
        if (pod["spec"].get("priority") or 0) >= EXPENDABLE_BELOW
        and not pod["status"].get("nominatedNodeName")
        and CONSUMES not in (pod["metadata"].get("annotations") or {})
    ]


def without_room(pods: Iterable[Pod], rooms: Iterable[tuple[NodeTemplate, Mapping[str, Decimal]]]) -> list[Pod]:
    """The pods that find no place in what is free now and on nodes under way, the most important first."""
    nodes = [_Room(template, dict(free)) for template, free in rooms]
    in_order = sorted(pods, key=lambda pod: -(pod["spec"].get("priority") or 0))
    return [pod for pod in in_order if not any(node.take(pod) for node in nodes)]


@dataclass(kw_only=True)
class ScaleUp:
    """cluster-autoscaler's choice: the group that wastes least, ties by lot, spread over groups like it."""

    balance_similar: bool = True
    similar_despite: frozenset[str] = frozenset()
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def plan(self, pods: Sequence[Pod], groups: Sequence[NodeGroup], *, backed_off: Iterable[str]) -> Plan:
        """For pods without room. Each group's template says what its next node would be."""
        groups = [group for group in groups if not group.queued]
        not_now = set(backed_off)
        skipped = {group.name: BACKED_OFF for group in groups if group.name in not_now}
        limits = _Limits(groups)
        skipped |= {group.name: _AT_MAX for group in groups if not limits.of(group)}
        open_groups = [group for group in groups if group.name not in skipped]
        options = [option for group in open_groups if (option := self._option(group, pods, open_groups, limits)).pods]
        best = self._least_waste(options)
        helped = best.pods if best else ()
        return Plan(
            increases=self._spread(best, open_groups, limits) if best else (),
            helped=helped,
            refused=tuple(
                (pod, self._reasons(pod, open_groups, skipped)) for pod in pods if all(pod is not one for one in helped)
            ),
        )

    def _option(self, group: NodeGroup, pods: Sequence[Pod], groups: Sequence[NodeGroup], limits: _Limits) -> _Option:
        """How many of the group's nodes the pods would need, and which of them find a place then."""
        limit = limits.together(self._like(group, groups))
        nodes: list[_Room] = []
        placed: list[Pod] = []
        for pod in sorted(pods, key=_size, reverse=True):
            if why_not(pod, group.template, free=group.template.allocatable) is not None:
                continue
            if any(node.take(pod) for node in nodes):
                placed.append(pod)
            elif len(nodes) < limit:
                nodes.append(_Room(group.template, dict(group.template.allocatable)))
                nodes[-1].take(pod)
                placed.append(pod)
        return _Option(group=group, nodes=len(nodes), pods=tuple(placed))

    def _like(self, group: NodeGroup, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
        """The group itself first."""
        if not self.balance_similar:
            return [group]
        return [group, *(each for each in groups if each.name != group.name and self._similar(group, each))]

    def _similar(self, one: NodeGroup, other: NodeGroup) -> bool:
        labels = [
            {key: value for key, value in each.template.labels.items() if key not in self.similar_despite}
            for each in (one, other)
        ]
        return labels[0] == labels[1] and _same_size(one.template.allocatable, other.template.allocatable)

    def _least_waste(self, options: Sequence[_Option]) -> _Option | None:
        if not options:
            return None
        wasted = [(_waste(option), option) for option in options]
        least = min(waste for waste, _ in wasted)
        return self.random.choice([option for waste, option in wasted if waste == least])

    def _spread(self, option: _Option, groups: Sequence[NodeGroup], limits: _Limits) -> tuple[Increase, ...]:
        """One node after another to the smallest of the groups that are alike."""
        alike = self._like(option.group, groups)
        for _ in range(option.nodes):
            limits.grow(min((each for each in alike if limits.of(each)), key=lambda each: limits.sizes[each.name]))
        sizes = limits.sizes
        return tuple(
            Increase(group=group.name, before=group.target, after=sizes[group.name], max_size=group.max_size)
            for group in alike
            if sizes[group.name] > group.target
        )

    def _reasons(self, pod: Pod, groups: Sequence[NodeGroup], skipped: Mapping[str, str]) -> Mapping[str, int]:
        refusals = (why_not(pod, group.template, free=group.template.allocatable) for group in groups)
        return Counter([reason for reason in refusals if reason] + list(skipped.values()))


def reasons_text(reasons: Mapping[str, int]) -> str:
    """As in the event: `1 max node group size reached, 2 node(s) had untolerated taint(s)`."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _size(pod: Pod) -> tuple[Decimal, Decimal]:
    asked = requests(pod)
    return asked.get("cpu", Decimal(0)), asked.get("memory", Decimal(0))


def _waste(option: _Option) -> Decimal:
    asked = {
        kind: sum((requests(pod).get(kind, Decimal(0)) for pod in option.pods), Decimal(0))
        for kind in ("cpu", "memory")
    }
    allocatable = option.group.template.allocatable
    return sum((1 - amount / (allocatable[kind] * option.nodes) for kind, amount in asked.items()), Decimal(0))


def _same_size(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> bool:
    return one.keys() == other.keys() and all(
        abs(one[name] - other[name]) <= max(one[name], other[name]) * _MAY_DIFFER.get(name, Decimal(0)) for name in one
    )
