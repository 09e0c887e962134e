"""World: cluster, cloud and actors together, and the rules of what must never happen to them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, Pod
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import FRESH
from airflow_gpu_provider.scaling.decide.snapshot import READY_WITHIN
from tests.fakes.objects import Change, Raw
from tests.unit.scaling.model import autoscaler
from tests.unit.scaling.model.actors import Actors, ModelClock
from tests.unit.scaling.model.cloud import SPECS, Asg, Cloud, Kind, ModelPlatform, groups_of
from tests.unit.scaling.model.cluster import NODES, PODS, Cluster, until_of
from tests.unit.scaling.model.runs import RIGHT_TO, HardToGet, Run, counting_decisions, patiently

LOSS_IS_NEWS = 120.0
"""Seconds for which a decision may not know yet that the cloud has taken a machine."""

TOLD_BY = ("installation", "block")
"""What tells demand with equal DAG and run ids apart."""

BINDING_LAG = 0.9
"""Seconds from the scheduler's choice of a node, by what it knew then, until the pod is bound.

Less than CORDON_TO_RECHECK."""


class World(Cluster):
    """One pool, whose spec has these fields, and all that happens to it.

    Attributes:
        clocks: Each installation's own; none of them need be right.
        stale: The seed of how old what the cloud shows is; None: it is never old.
        wrong: What has happened that must not; empty as long as nothing has.
    """

    def __init__(
        self,
        *,
        max_nodes: int,
        reconciler: type[Reconciler] = Reconciler,
        told_by: Collection[str] = TOLD_BY,
        clocks: tuple[float, float] = (0.0, 0.0),
        kind: Kind = "own groups",
        stale: int | None = None,
        **fields: Any,
    ) -> None:
        self.pool = EksGpuPool(
            name="train",
            cluster_name="ml",
            region="us-west-2",
            max_nodes=max_nodes,
            max_runtime=timedelta(hours=6),
            **SPECS[kind],
            **fields,
        )
        super().__init__(Actors())
        self.cloud = Cloud(self.pool, groups_of(self.pool), self.actors, stale=stale)
        self.released: set[str] = set()  # machines that actors have told the cloud to end
        self.lost_pods: set[str] = set()
        self.lost_at = float("-inf")
        self.overdue_until: dict[str, float] = {}  # node -> when a pod that was overdue left it, or ended
        self.ends: dict[str, datetime] = {}  # run -> its until
        self.undone: set[str] = set()  # leases that people have deleted
        self.told_by = told_by
        self.bindings: dict[str, tuple[str, float]] = {}  # pod -> the node chosen for it, and when
        self.runs: dict[str, Run] = {}
        self.clocks = [ModelClock(self.actors, ahead=seconds) for seconds in clocks]
        self._reconciler = counting_decisions(reconciler, self.actors)
        self._count = 0
        self.wrong = ""
        self.actors.when_time_moves = self._time_moved
        self.cloud.when_told = self._judge_switches
        self.server.when_changed(self._changed)

    def require(self, holds: bool, what: str) -> None:
        """Raise what is wrong; and keep it, for an actor's own clean-up is in the way of what is raised in its code."""
        if not holds:
            self.wrong = "\n".join([what, *self.actors.events[-40:]])
            raise AssertionError(self.wrong)

    def reconciler(self, holder: str, number: int) -> Reconciler:
        """Return what an actor of one of the two installations changes the pool with."""
        platform = ModelPlatform(self.cloud, self.actors, self.terminate)
        return self._reconciler(
            self.pool,
            platform,
            self.api,  # type: ignore[arg-type]
            holder=holder,
            report=self.actors.note,
            at_once=1,
            clock=ServerClock(self.api, self.clocks[number % 2]),  # type: ignore[arg-type]
        )

    # -- what must never happen ------------------------------------------------------------------------------

    def terminate(self, machine: str) -> None:
        """A machine goes, by an actor's call or by its group's choice: was that right?"""
        self.actors.note(f"machine {machine} goes")
        asg = self.cloud.asg_of(machine)
        if asg is None:
            return
        # The switch is the one thing that may take a machine with a pod; whether it may fire was judged when it did.
        by_switch = asg.switched and self.actors.current is None
        by_autoscaler = self.pool.is_autoscaled and self.actors.current is None
        self.require(not (self.actors.current and self.is_cordoned_by_people(machine)), "somebody's cordon is ignored")
        if by_switch:
            self.lost_at = self.actors.time
        else:
            for pod in self.pods_on(machine):
                self.require(not self.is_protected(pod), f"machine {machine} goes with pod {pod.name}")
            if self.actors.time - self.lost_at > LOSS_IS_NEWS and not by_autoscaler:
                self._require_enough_without(machine)
        if self.actors.current:
            self.released.add(machine)
        self._ends(asg, machine)

    def lose(self, machine: str) -> None:
        """The cloud takes a machine back (spot), whatever runs there; its group will replace it."""
        asg = self.cloud.asg_of(machine)
        if asg and machine in asg.live:
            self.actors.note(f"machine {machine} is lost")
            self.lost_at = self.actors.time
            self.lost_pods |= {pod.name for pod in self.pods_on(machine)}
            self._ends(asg, machine)

    def _ends(self, asg: Asg, machine: str) -> None:
        asg.terminating.add(machine)
        for pod in self.pods_on(machine):
            if pod.finished:
                self.lost_pods.add(pod.name)  # its run came for the result too late; whether it was, is judged before
            self.remove_pod(pod.name)

    def is_protected(self, pod: Pod) -> bool:
        if pod.run and self.ends[pod.run] <= self.now + RIGHT_TO:
            return False
        if pod.finished:
            # One that is deleted has been read.
            return (
                pod.uncollected
                and not pod.deleting
                and self.now + RIGHT_TO - (pod.finished_at or pod.created_at) < COLLECT_WITHIN
            )
        return True

    def _require_enough_without(self, machine: str) -> None:
        live = self.live_leases(self.now + RIGHT_TO)
        leased = sum(int(raw["metadata"]["annotations"]["airflow-gpu-provider/nodes"]) for raw in live)
        wanted = min(self.pool.max_nodes, leased)
        if self.pool.is_autoscaled:
            wanted = max(wanted, self._in_demand())
        was_overdue = self.actors.time - self.overdue_until.get(f"node-{machine}", float("-inf")) <= LOSS_IS_NEWS
        overdue = was_overdue or any(
            pod.run and self.ends[pod.run] <= self.now + RIGHT_TO for pod in self.pods_on(machine)
        )
        left = [each for asg in self.cloud.asgs.values() for each in asg.live if each != machine]
        is_due = overdue or self._never_got_ready(machine) or len(left) >= wanted
        self.require(is_due, f"machine {machine} goes, {len(left)} stay, {wanted} are wanted")

    def _in_demand(self) -> int:
        """Count the nodes that an autoscaler brought for pods: those they are on, and wait for since some time."""
        pods = [Pod.parse(raw) for raw in self.pods.values()]
        old = [pod for pod in pods if not pod.node and (self.now - pod.created_at).total_seconds() > LOSS_IS_NEWS]
        return len({pod.node for pod in pods if pod.node and not pod.finished}) + len(old)

    def _never_got_ready(self, machine: str) -> bool:
        """Whether it was of no use when it was last looked at, moments ago."""
        asg = self.cloud.asg_of(machine)
        raw = self.nodes.get(f"node-{machine}")
        node = Node.parse(raw) if raw else None
        is_ready = node and node.ready and self.now - (node.ready_changed_at or self.now) > FRESH
        return asg is not None and not is_ready and self.now + RIGHT_TO - asg.machines[machine] > READY_WITHIN

    def require_no_size_without_demand(self) -> None:
        """Somebody has just seen that nothing is left to do: then no group may be about to bring a machine."""
        if self._demand() or self.pods or self.pool.is_autoscaled:
            return
        sizes = {name: asg.desired for name, asg in self.cloud.asgs.items()}
        coming = [name for name, asg in self.cloud.asgs.items() if asg.desired > max(asg.keeps, len(asg.machines))]
        self.require(not coming, f"nobody wants machines, nobody looks any more, and sizes are {sizes}")

    def _demand(self) -> list[Raw]:
        return list(self.live_leases(self.now))

    def _changed(self, change: Change) -> None:
        if change.kind == "apis/coordination.k8s.io/v1/leases":
            self._judge_switches()

    def check(self) -> None:
        assert not self.wrong, self.wrong
        asgs = self.cloud.asgs.values()
        # What the switch has ended is on its way out, and a launch that it came upon too.
        sizes = [max(asg.desired, 0 if asg.switched else len(asg.live) + asg.launching) for asg in asgs]
        # An autoscaler is bound by each group's own limit.
        most = max(sizes) if self.pool.is_autoscaled else sum(sizes)
        self.require(most <= self.pool.max_nodes, f"sizes {sizes} are more than max_nodes")

    def _time_moved(self) -> None:
        self.cloud.remember()
        for pod, (_, chosen_at) in list(self.bindings.items()):
            if self.actors.time - chosen_at >= BINDING_LAG:
                self.bind(pod)
        for asg in self.cloud.asgs.values():
            if asg.switch_at and asg.switch_at <= self.now:
                self._switch_fires(asg)
        for raw in list(self.pods.values()):
            if "deletionTimestamp" in raw["metadata"] and (Pod.parse(raw).delete_at or self.now) <= self.now:
                self.actors.note(f"pod {raw['metadata']['name']} is gone")
                self._pod_goes(raw)

    def _pod_goes(self, raw: Raw) -> None:
        pod = Pod.parse(raw)
        self._leaves_if_overdue(pod)
        self.remove_pod(pod.name)

    def _leaves_if_overdue(self, pod: Pod) -> None:
        """Keep when an overdue pod goes or ends: until then its machine was of no use, and may be on its way out."""
        if pod.node and pod.run and self.ends[pod.run] <= self.now + RIGHT_TO:
            self.overdue_until[pod.node] = self.actors.time

    def _judge_switches(self) -> None:
        """Whoever sees demand relies on this at once: the cloud ends what is there after it, and not before."""
        until = max((until_of(raw) for raw in self._demand()), default=self.now)
        for asg in self.cloud.asgs.values():
            # What an autoscaler adds for a pod of nobody's demand it removes again, whoever is dead.
            by_autoscaler = self.pool.is_autoscaled and not self._demand()
            if asg.desired > asg.keeps and not by_autoscaler:
                self.require(asg.switch_at is not None, f"{asg.candidate.group} has a size and no switch")
                self.require(asg.switch_at is None or asg.switch_at > until, "the switch comes before the demand's end")

    def _switch_fires(self, asg: Asg) -> None:
        asg.switch_at = None
        if max(asg.desired, len(asg.live)) > asg.keeps:
            self.actors.note(f"the switch of {asg.candidate.group} fires")
            self.require(not self._demand(), "the switch fires while somebody's demand is live")
            asg.switched = True
        asg.desired = asg.keeps

    # -- what clouds, nodes and schedulers do ----------------------------------------------------------------

    def join(self, machine: str) -> None:
        """The machine's node registers; it cannot be Ready yet."""
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": self.stamp()}
        labels = {} if self.pool.manage == "scale" else {POOL_LABEL: self.pool.name}
        node = {
            "metadata": {"labels": labels},
            "spec": {"providerID": f"aws:///us-west-2a/{machine}"},
            "status": {"conditions": [ready], "allocatable": {"nvidia.com/gpu": "1"}},
        }
        self.actors.note(f"node-{machine} joins")
        self.server.put(f"{NODES}/node-{machine}", node)

    def joining(self) -> list[str]:
        live = [machine for asg in self.cloud.asgs.values() for machine in asg.live]
        return [machine for machine in live if f"node-{machine}" not in self.nodes]

    def delete_pod_by_people(self, pod: Raw) -> None:
        """Somebody deletes a pod; its run does not find it again."""
        self.actors.note(f"somebody deletes pod {pod['metadata']['name']}")
        self.lost_pods.add(pod["metadata"]["name"])
        self._pod_goes(pod)

    def delete_node_by_people(self, node: Raw) -> None:
        """Somebody deletes a node, and its pods with it; its kubelet registers it anew."""
        name = node["metadata"]["name"]
        self.actors.note(f"somebody deletes {name}")
        self.lost_at = self.actors.time
        for pod in self.pods_on(name.removeprefix("node-")):
            self.lost_pods.add(pod.name)
            self.remove_pod(pod.name)
        self.server.remove(f"{NODES}/{name}")

    def idle(self) -> list[Raw]:
        """Return the nodes on which no pod is, or is about to be."""
        return [node for node in self.nodes.values() if node["metadata"]["name"] in self.free()]

    def free(self) -> set[str]:
        active = (raw for raw in self.pods.values() if raw["status"]["phase"] in ("Pending", "Running"))
        used = {raw["spec"].get("nodeName") for raw in active} | {node for node, _ in self.bindings.values()}
        live = {f"node-{machine}" for asg in self.cloud.asgs.values() for machine in asg.live}
        return {name for name in live if name not in used}

    def undo_by_people(self, lease: str) -> None:
        """Somebody ends a run's demand, or frees the lock, by hand: kubectl delete lease."""
        self.actors.note(f"somebody deletes {lease}")
        self.undone.add(lease)
        self.server.remove(f"{LEASES.strip('/')}/{lease}")

    def pending(self) -> list[Raw]:
        pods = self.pods.values()
        return [raw for raw in pods if not raw["spec"].get("nodeName") and raw["metadata"]["name"] not in self.bindings]

    def choose_node(self, pod: Raw) -> None:
        """The scheduler picks a node, by what it sees now; the binding may come a moment later."""
        active = (raw for raw in self.pods.values() if raw["status"]["phase"] in ("Pending", "Running"))
        taken = {raw["spec"].get("nodeName") for raw in active}
        taken |= {node for node, _ in self.bindings.values()}
        for name, node in self.nodes.items():
            ready = node["status"]["conditions"][0]["status"] == "True"
            machine = name.removeprefix("node-")
            asg = self.cloud.asg_of(machine)
            is_open = not (node["spec"].get("unschedulable") or node["spec"].get("taints"))
            is_in_pool = node["metadata"].get("labels", {}).get(POOL_LABEL) == self.pool.name
            # A node is Ready for some seconds after its machine was told to end.
            is_there = asg and (machine in asg.live or machine in self.released)
            if ready and is_open and is_in_pool and name not in taken and is_there:
                self.require(machine not in self.released, f"{name} is open to pods again, and its machine is released")
                self.actors.note(f"pod {pod['metadata']['name']} is to run on {name}")
                self.bindings[pod["metadata"]["name"]] = (name, self.actors.time)
                return

    def bind(self, pod: str) -> None:
        node, _ = self.bindings.pop(pod)
        asg = self.cloud.asg_of(node.removeprefix("node-"))
        # On a node that was deleted meanwhile it runs nowhere.
        is_there = node in self.nodes and asg and node.removeprefix("node-") in asg.live
        if pod in self.pods and is_there:
            self.actors.note(f"pod {pod} is bound to {node}")
            self.change_pod(self.pods[pod], {"spec": {"nodeName": node}, "status": {"phase": "Running"}})

    def finish(self, pod: Raw) -> None:
        self.actors.note(f"pod {pod['metadata']['name']} ends")
        self._leaves_if_overdue(Pod.parse(pod))
        ended = {"state": {"terminated": {"finishedAt": self.stamp()}}}
        self.change_pod(pod, {"status": {"phase": "Succeeded", "containerStatuses": [ended]}})

    def pods_end(self) -> None:
        for pod in self.running():
            self.finish(pod)

    def create_pod(self, run: str | None) -> str:
        self._count += 1
        name = f"pod-{self._count}"
        metadata: Raw = {"labels": {RUN_LABEL: run} if run else {}}
        if run:
            metadata["annotations"] = {UNCOLLECTED: "true"}
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        spec = {"nodeSelector": {POOL_LABEL: self.pool.name}, "containers": [{"resources": resources}]}
        self.actors.note(f"pod {name} of {run} is created")
        self.server.put(f"{PODS}/{name}", {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        return name

    def terminated(self) -> None:
        """Machines that were on their way out are gone, and their nodes with them."""
        for asg in self.cloud.asgs.values():
            for machine in asg.terminating:
                del asg.machines[machine]
                if f"node-{machine}" in self.nodes:
                    self.server.remove(f"{NODES}/node-{machine}")
            asg.terminating.clear()

    def everything_happens(self, *, pods_start: bool = True) -> None:
        """One round of all that clouds, kubelets, the scheduler and the autoscaler do by themselves."""
        if self.pool.is_autoscaled:
            for node in self.tainted():
                autoscaler.removes(self, node)
            autoscaler.grows(self)
        for name, asg in self.cloud.asgs.items():
            while self.cloud.launch_begins(name):
                continue
            while asg.launching:
                self.cloud.launch_ends(name)
            if surplus := self.cloud.surplus(name):
                self.terminate(surplus[0])
        self.terminated()
        for machine in self.joining():
            self.join(machine)
        for node in list(self.nodes.values()):
            self.become_ready(node)
        for pod in self.pending() if pods_start else ():
            self.choose_node(pod)

    # -- what DAG runs do ------------------------------------------------------------------------------------

    def start_run(self, nodes: int, hard_to_get: HardToGet = "keep trying") -> None:
        """Start a run's block: of one of two installations with equal ids, and the run's first or second block."""
        number = len(self.actors.all)
        key = DemandKey(
            installation=f"airflow-{number % 2}" if "installation" in self.told_by else "airflow",
            dag_id="dag",
            run_id=f"run-{number // 4}",
            pool=self.pool.name,
            block="evaluate" * (number // 2 % 2) if "block" in self.told_by else "",
        )
        name = f"run-{number}"
        run = Run(self, key, self.reconciler(name, number), nodes, hard_to_get)
        self.runs[name] = run
        self.actors.start(name, run.work)

    def start_janitor(self, name: str = "janitor") -> None:
        def work() -> None:
            reconciler = self.reconciler(name, 1)
            while True:
                patiently(self, reconciler.reconcile)
                self.actors.clock.sleep(60)

        self.actors.start(name, work)
