"""The autoscaler's loop: look at groups, nodes and waiting pods; grow groups for them; remove unneeded nodes."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from gpu_sandbox.autoscaler.backoff import Backoffs
from gpu_sandbox.autoscaler.cluster import (
    DELETION_CANDIDATE,
    GPU,
    TO_BE_DELETED,
    Cluster,
    ClusterApi,
    Node,
    template_from,
)
from gpu_sandbox.autoscaler.fitting import Pod, requests
from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, NodeGroups, NodeTemplate, Resources
from gpu_sandbox.autoscaler.listing import ClusterLists
from gpu_sandbox.autoscaler.provisioning import ProvisioningRequests
from gpu_sandbox.autoscaler.scale_down import Deletion, Removable, removable, unneeded_seconds
from gpu_sandbox.autoscaler.scale_up import (
    Growth,
    Increase,
    ScaleUp,
    reasons_text,
    without_room,
    worth_a_machine,
)
from gpu_sandbox.autoscaler.status import GroupState, StatusText
from gpu_sandbox.autoscaler.timings import AutoscalerTimings
from gpu_sandbox.autoscaler.watching import ClusterView, ClusterWatch
from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.faults import Faults

log = logging.getLogger(__name__)


class Autoscaler:
    """A thread that acts every `timings.scan_interval`; while `faults.autoscaler_dead` it does nothing at all."""

    def __init__(
        self,
        *,
        groups: NodeGroups,
        control_plane: ControlPlane,
        faults: Faults,
        timings: AutoscalerTimings,
        clock: Clock,
    ) -> None:
        self._cloud = groups
        self._clock = clock
        self._lists = ClusterLists(control_plane, clock, faults) if clock.stands_still else None
        self._view: ClusterView = self._lists or ClusterWatch(control_plane.kubeconfig)
        self._api = ClusterApi(control_plane=control_plane, view=self._view, clock=clock)
        self._faults = faults
        self._timings = timings
        self._now = self._clock.now
        self._status = StatusText()
        self._backoffs = Backoffs(timings=timings, clock=clock)
        self._requests = (
            ProvisioningRequests(
                control_plane=control_plane,
                resize_requests=groups.resize_requests,
                backoffs=self._backoffs,
                faults=faults,
                clock=clock,
                timings=timings,
            )
            if groups.resize_requests
            else None
        )
        self._scale_up = ScaleUp(similar_despite=groups.similar_despite)
        self._groups: dict[str, NodeGroup] = {}
        self._looked_at: float | None = None
        self._templates: dict[str, NodeTemplate] = {}
        self._growths: dict[str, Growth] = {}
        self._unneeded_since: dict[str, float] = {}
        self._unregistered_since: dict[str, float] = {}
        self._deletions: dict[str, Deletion] = {}
        self._grew_at: float | None = None
        self._clean = False
        every, name = timings.scan_interval, "cluster-autoscaler"
        self._loops = [clock.loop(self.step, poll=every, name=name, mark=self._mark, periodic=True)]
        if self._lists:
            self._loops.append(clock.loop(self._lists.note_what_is_new, poll=every, name="lists of the cluster"))

    def start(self) -> None:
        self._view.start()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Returns when its last loop is over. Its status stays in the cluster, and grows old."""
        for loop in self._loops:
            loop.stop()
        self._view.stop()

    def step(self) -> None:
        """One loop."""
        if self._faults.autoscaler_dead:
            return
        try:
            if self._lists:
                self._lists.settle(self._api.look)
            cluster = self._api.look()
            if not self._clean:
                self._take_taints_of_earlier_days(cluster)
            self._look_at_groups()
            self._learn_templates(cluster)
            self._see_growths(cluster)
            if self._requests:
                for name, size in self._requests.step(self._known()).items():
                    self._resized(name, size)
            pods_are_new = self._grow(cluster)
            candidates = self._shrink(cluster, wait=pods_are_new)
            self._write_status(cluster, candidates)
        except OSError as error:
            log.debug("the API server is away: %s", error)

    def _mark(self) -> Hashable:
        """Differs where the next loop may do something that this one has prepared."""
        groups = [(group.name, group.target, group.machines, group.failed) for group in self._groups.values()]
        growths = [(name, growth.since, growth.increase) for name, growth in self._growths.items()]
        others = self._backoffs.mark(), self._requests.mark() if self._requests else ()
        return tuple(groups), tuple(growths), tuple(self._deletions), tuple(self._unneeded_since), others

    def _take_taints_of_earlier_days(self, cluster: Cluster) -> None:
        """As cluster-autoscaler does when it starts: what a dead one had begun is not to be finished."""
        for node in cluster.nodes:
            if node.being_deleted:
                self._api.set_taint(node, TO_BE_DELETED, effect="NoSchedule", present=False)
        self._clean = True

    # What there is

    def _look_at_groups(self) -> None:
        """Sizes and machines are believed for a while: changes by others are not seen before that."""
        now = self._now()
        if self._looked_at is not None and not self._clock.reached(self._looked_at + self._timings.group_cache):
            return
        self._groups = {group.name: group for group in self._cloud.look()}
        self._looked_at = now

    def _learn_templates(self, cluster: Cluster) -> None:
        """A group that has, or had, a node is known by that, whatever its tags say."""
        for group in self._groups.values():
            for node in self._nodes_of(group, cluster):
                if node.usable and group.name not in self._templates:
                    self._templates[group.name] = template_from(node)
        self._templates = {name: each for name, each in self._templates.items() if name in self._groups}

    def _known(self) -> list[NodeGroup]:
        return [
            replace(group, template=self._templates.get(group.name, group.template)) for group in self._groups.values()
        ]

    def _nodes_of(self, group: NodeGroup, cluster: Cluster) -> list[Node]:
        return [node for node in cluster.nodes if node.machine in group.machines]

    # Growing

    def _see_growths(self, cluster: Cluster) -> None:
        """Which scale-ups are over, which failed at the cloud, and which take too long."""
        now = self._now()
        for group in list(self._groups.values()):
            growth = self._growths.get(group.name)
            if growth is not None and self._under_way(group, cluster) == 0:
                del self._growths[group.name]
                self._backoffs.worked(group.name)
            elif group.failed is not None:
                self._give_up(group, group.failed, growth)
            elif growth is not None and self._clock.reached(growth.since + self._timings.provision_timeout):
                self._time_out(group, growth, now - growth.since)
        self._end_what_never_joined(cluster)

    def _under_way(self, group: NodeGroup, cluster: Cluster) -> int:
        usable = sum(node.usable for node in self._nodes_of(group, cluster))
        return max(group.target - usable, 0)

    def _give_up(self, group: NodeGroup, why: FailedLaunch, growth: Growth | None) -> None:
        missing = group.target - len(group.machines)
        if growth is not None:
            self._api.status_event(
                "ScaleUpFailed",
                f"Failed adding {missing} nodes to group {group.name} due to OutOfResource.{why.code}; source errors: "
                f"{why.message}",
                warning=True,
            )
            self._failed(group.name, why)
        self._resized(group.name, self._cloud.give_up_missing(group.name))

    def _time_out(self, group: NodeGroup, growth: Growth, seconds: float) -> None:
        self._api.status_event(
            "ScaleUpTimedOut",
            f"Nodes added to group {group.name} failed to register within {seconds:.9f}s",
            warning=True,
        )
        why = f"Scale-up timed out for node group {group.name} after {seconds:.9f}s"
        self._failed(group.name, FailedLaunch(code="timeout", message=why))
        if group.target - growth.increase >= len(group.machines):
            self._set_size(group, group.target - growth.increase)

    def _failed(self, name: str, why: FailedLaunch) -> None:
        self._growths.pop(name, None)
        self._backoffs.failed(name, why)

    def _end_what_never_joined(self, cluster: Cluster) -> None:
        """Machines that are there for long without a Node."""
        now = self._now()
        missing = {
            machine: group
            for group in self._groups.values()
            for machine in group.machines
            if machine not in cluster.by_machine
        }
        self._unregistered_since = {machine: self._unregistered_since.get(machine, now) for machine in missing}
        for machine, group in missing.items():
            # For queued nodes the real one's timeout is a year (getMaxNodeProvisionTime).
            long_ago = not group.queued and self._clock.reached(
                self._unregistered_since[machine] + self._timings.provision_timeout
            )
            if long_ago and group.target > group.min_size and self._delete(group.name, machine):
                self._api.status_event("DeleteUnregistered", f"Removed unregistered node {machine}")

    def _grow(self, cluster: Cluster) -> bool:
        """Help the pods that wait; whether all of them are too new for that."""
        groups = self._known()
        rooms: list[tuple[NodeTemplate, Resources]] = [
            (node.template, node.free) for node in cluster.nodes if node.usable
        ]
        rooms += [
            (group.template, group.template.allocatable)
            for group in groups
            if group.name in self._growths
            for _ in range(self._under_way(group, cluster))
        ]
        waiting = without_room(worth_a_machine(cluster.pending), rooms)
        if not waiting:
            return False
        if all(self._is_new(pod) for pod in waiting):
            return True
        self._help(waiting, groups)
        return False

    def _is_new(self, pod: Pod) -> bool:
        wait = self._timings.new_gpu_pod if requests(pod).get(GPU) else self._timings.new_pod
        return not self._clock.reached(self._view.born(pod) + wait)

    def _help(self, waiting: Sequence[Pod], groups: Sequence[NodeGroup]) -> None:
        backed_off = [group.name for group in groups if self._backoffs.why(group.name) is not None]
        plan = self._scale_up.plan(waiting, groups, backed_off=backed_off)
        done = [increase for increase in plan.increases if self._carry_out(increase)]
        if done:
            text = " ".join(map(str, done))
            for pod in plan.helped:
                self._api.event("Pod", pod["metadata"], "TriggeredScaleUp", f"pod triggered scale-up: [{text}]")
        elif not plan.increases:
            for pod, reasons in plan.refused:
                self._refuse(pod, reasons)

    def _refuse(self, pod: Pod, reasons: Mapping[str, int]) -> None:
        self._api.event(
            "Pod", pod["metadata"], "NotTriggerScaleUp", f"pod didn't trigger scale-up: {reasons_text(reasons)}"
        )

    def _carry_out(self, increase: Increase) -> bool:
        group, now = self._groups[increase.group], self._now()
        sizes = f"{increase.after} instead of {increase.before} (max: {increase.max_size})"
        self._api.status_event("ScaledUpGroup", f"Scale-up: setting group {group.name} size to {sizes}")
        if not self._set_size(group, increase.after):
            return False
        before = self._growths.get(group.name)
        added = increase.after - increase.before
        self._growths[group.name] = Growth(increase=added + (before.increase if before else 0), since=now)
        self._grew_at = now
        self._api.status_event("ScaledUpGroup", f"Scale-up: group {group.name} size set to {sizes}")
        return True

    def _set_size(self, group: NodeGroup, size: int) -> bool:
        try:
            self._cloud.set_size(group.name, size)
        except ValueError as error:
            self._api.status_event(
                "FailedToScaleUpGroup", f"Scale-up failed for group {group.name}: {error}", warning=True
            )
            self._failed(group.name, FailedLaunch(code="cloudProviderError", message=str(error)))
            return False
        self._resized(group.name, size)
        return True

    def _resized(self, name: str, size: int) -> None:
        self._groups[name] = replace(self._groups[name], target=size, failed=None)

    # Shrinking

    def _shrink(self, cluster: Cluster, *, wait: bool) -> dict[str, Removable]:
        """Go on with what is being deleted, and begin with what has been unneeded for long. Returns the unneeded."""
        self._go_on_deleting(cluster)
        candidates = self._unneeded(cluster)
        now = self._now()
        self._unneeded_since = {name: self._unneeded_since.get(name, now) for name in candidates}
        if not wait and not self._is_cooling_down():
            self._begin_deleting(candidates)
        self._set_candidate_taints(cluster, candidates)
        return candidates

    def _is_cooling_down(self) -> bool:
        return self._grew_at is not None and not self._clock.reached(self._grew_at + self._timings.delay_after_add)

    def _unneeded(self, cluster: Cluster) -> dict[str, Removable]:
        found: dict[str, Removable] = {}
        staying = [node for node in cluster.nodes if not node.being_deleted]
        for group in self._groups.values():
            going = 0
            for node in self._nodes_of(group, cluster):
                if node.name in self._deletions:
                    continue
                others = [other for other in staying if other.name != node.name and other.name not in found]
                one = removable(node, group, others)
                if one is not None and group.target - going > group.min_size:
                    found[node.name] = one
                    going += 1
        return found

    def _begin_deleting(self, candidates: Mapping[str, Removable]) -> None:
        """All empty nodes at once, but only one at a time of those with pods."""
        draining = any(not deletion.removable.empty for deletion in self._deletions.values())
        for name, one in candidates.items():
            group = self._group_of(one.node)
            if group is None:
                continue
            seconds = unneeded_seconds(one.node, group, self._timings)
            if not self._clock.reached(self._unneeded_since[name] + seconds):
                continue
            if not one.empty and draining:
                continue
            draining = draining or not one.empty
            self._begin(one, group)

    def _begin(self, one: Removable, group: NodeGroup) -> None:
        node = one.node
        if not self._api.set_taint(node, TO_BE_DELETED, effect="NoSchedule", present=True):
            return
        about = {"name": node.name, "uid": node.uid}
        self._api.event("Node", about, "ScaleDown", "marked the node as toBeDeleted/unschedulable")
        if one.empty:
            self._api.status_event("ScaleDownEmpty", f'Scale-down: removing empty node "{node.name}"')
        for pod in one.to_evict:
            self._api.event("Pod", pod["metadata"], "ScaleDown", "deleting pod for node scale down")
        self._deletions[node.name] = Deletion(group=group.name, removable=one, since=self._now())

    def _go_on_deleting(self, cluster: Cluster) -> None:
        nodes = {node.name: node for node in cluster.nodes}
        for name, deletion in list(self._deletions.items()):
            node = nodes.get(name)
            if node is None or deletion.group not in self._groups:
                del self._deletions[name]
                continue
            uids = {pod["metadata"]["uid"] for pod in node.pods}
            left = [pod for pod in deletion.removable.to_evict if pod["metadata"]["uid"] in uids]
            for pod in left:
                self._api.evict(pod)
            if left:
                self._clock.reached(self._now() + self._timings.scan_interval)  # they are looked at again then
            elif self._clock.reached(deletion.since + self._timings.node_delete_delay):
                self._end(node, deletion)

    def _end(self, node: Node, deletion: Deletion) -> None:
        del self._deletions[node.name]
        if not self._delete(deletion.group, node.machine):
            about = {"name": node.name, "uid": node.uid}
            self._api.event("Node", about, "ScaleDownFailed", "failed to delete the node", warning=True)
            self._api.set_taint(node, TO_BE_DELETED, effect="NoSchedule", present=False)
        elif deletion.removable.empty:
            self._api.status_event("ScaleDownEmpty", f"Scale-down: empty node {node.name} removed")
        else:
            self._api.status_event("ScaleDown", f"Scale-down: node {node.name} removed with drain")

    def _delete(self, group: str, machine: str) -> bool:
        try:
            self._cloud.delete(group, machine)
        except ValueError as error:
            log.debug("%s of %s stays: %s", machine, group, error)
            return False
        self._groups[group] = self._groups[group].without(machine)
        return True

    def _set_candidate_taints(self, cluster: Cluster, candidates: Mapping[str, Removable]) -> None:
        """The soft taint that keeps new pods off nodes that may go, while others have room."""
        for node in cluster.nodes:
            is_candidate = node.name in candidates
            if is_candidate != node.has_taint(DELETION_CANDIDATE) and (is_candidate or self._group_of(node)):
                self._api.set_taint(node, DELETION_CANDIDATE, effect="PreferNoSchedule", present=is_candidate)

    def _group_of(self, node: Node) -> NodeGroup | None:
        return next((group for group in self._groups.values() if node.machine in group.machines), None)

    # Telling

    def _write_status(self, cluster: Cluster, candidates: Mapping[str, Removable]) -> None:
        moment = self._clock.utc_now()
        states = [
            GroupState(
                group=group,
                nodes=(nodes := self._nodes_of(group, cluster)),
                growing=group.name in self._growths,
                backoff=self._backoffs.why(group.name),
                candidates=sum(node.name in candidates for node in nodes),
            )
            for group in self._groups.values()
        ]
        self._api.write_status(self._status.write(states, cluster.nodes, now=moment), now=moment)
