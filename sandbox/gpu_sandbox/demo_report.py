"""The report of a demonstrated night: pure arithmetic over the journal, as JSON and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_sandbox.demo_journal import Entry, Subject
from gpu_sandbox.leftovers import Leftovers

CLUSTER_AUTOSCALER_SECONDS = 630
"""Pod end -> desired size 0 with cluster-autoscaler 1.36.1 and its default timings, measured."""

GROWING = ("SetDesiredCapacity", "UpdateNodegroupConfig", "UpdateAutoScalingGroup")
RELEASING = ("TerminateInstanceInAutoScalingGroup", *GROWING)

STAGES = ("sandbox up", "Airflow up", "DAG parsed")
"""The stages before the night begins."""

TRAINING_STARTED = "training runs"
TRAINING_ENDED = "training ended"


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """Times are in seconds; None if the night did not get that far."""

    dag_run_state: str
    expected_state: str
    accuracy: float | None
    max_nodes_seen: int
    nodes_after: int
    machines_after: int
    desired_after: int
    gpu_pods_after: int
    release_seconds: float | None
    """End of the training's process -> the call that takes its machine away."""
    airflow_hops_seconds: float | None
    """The part of release_seconds in which Airflow starts workers and this package has nothing to do yet."""
    node_gone_seconds: float | None
    """End of the training's process -> the machine is terminated and its Node is gone."""
    cluster_autoscaler_release_seconds: int
    kubernetes_version: str
    faults: tuple[str, ...]
    phases: tuple[Phase, ...]
    hops: tuple[Phase, ...]
    node_count: tuple[tuple[float, int], ...]
    """(seconds since the run was triggered, GPU nodes from then on)"""
    nodes: int
    """How many nodes the training is for."""
    ranks: int
    """Pods that trained together, in the last attempt."""
    rank_nodes: tuple[str, ...]
    """The node of each rank in the last attempt, rank 0 first."""
    rank_zones: tuple[str, ...]
    """The zone of each of them."""
    attempts: int
    """How often the training started, including restarts after a reclaimed machine."""

    @property
    def good(self) -> bool:
        """Whether the run has the expected state, its ranks were together, and nothing is left."""
        return self.dag_run_state == self.expected_state and self.together and self.clean

    @property
    def together(self) -> bool:
        """Whether each rank had its own node, all in one zone."""
        return self.ranks == self.nodes == len(set(self.rank_nodes)) and len(set(self.rank_zones)) == 1

    @property
    def clean(self) -> bool:
        return not (self.nodes_after or self.machines_after or self.desired_after or self.gpu_pods_after)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"good": self.good}


def make_report(
    entries: Iterable[Entry],
    *,
    run_state: str,
    expected_state: str,
    accuracy: float | None,
    leftovers: Leftovers,
    kubernetes_version: str,
    faults: Sequence[str],
    train_task: str,
    release_task: str,
    nodes: int = 1,
) -> Report:
    """Build the report; `train_task` and `release_task` are task ids without their group's name."""
    night = _Night(sorted(entries, key=lambda entry: entry.at), train_task, release_task)
    release, gone, ended = night.release(), night.machine_gone(), night.training_ended()
    hops = night.hops()
    return Report(
        dag_run_state=run_state,
        expected_state=expected_state,
        accuracy=accuracy,
        max_nodes_seen=max(count for _, count in night.node_count()),
        nodes_after=leftovers.nodes,
        machines_after=leftovers.machines,
        desired_after=leftovers.desired,
        gpu_pods_after=leftovers.gpu_pods,
        release_seconds=_between(ended, release),
        airflow_hops_seconds=_sum(hop.seconds for hop in hops if hop.name.startswith("Airflow")),
        node_gone_seconds=_between(ended, gone),
        cluster_autoscaler_release_seconds=CLUSTER_AUTOSCALER_SECONDS,
        kubernetes_version=kubernetes_version,
        faults=tuple(faults),
        phases=night.phases(),
        hops=hops,
        node_count=night.node_count(),
        nodes=nodes,
        ranks=len(ranks := night.rank_nodes()),
        rank_nodes=ranks,
        rank_zones=tuple(night.zone(node) for node in ranks),
        attempts=night.attempts(),
    )


class _Night:
    """The moments of one night, each None if it did not occur."""

    def __init__(self, entries: Sequence[Entry], train_task: str, release_task: str) -> None:
        self._entries = entries
        self._train = train_task
        self._release = release_task

    def _first(self, subject: Subject, *beginnings: str, after: float = 0, name: str | None = None) -> float | None:
        """When the first entry about `subject` came whose text begins so; `name` without its group's."""
        for entry in self._entries:
            if (
                entry.subject == subject
                and entry.at >= after
                and name in (None, entry.name, entry.name.rpartition(".")[2])
                and entry.what.startswith(beginnings or "")
            ):
                return entry.at
        return None

    def triggered(self) -> float | None:
        return self._first("run")

    def training_ended(self) -> float | None:
        """When the last training pod's process ended: a task may have tried more than once."""
        ends = [e.at for e in self._entries if e.subject == "pod" and e.what == TRAINING_ENDED]
        return max(ends, default=None)

    def gpus_allocatable(self) -> float | None:
        return next((e.at for e in self._entries if e.subject == "node" and " GPU" in e.what), None)

    def release(self) -> float | None:
        ended = self.training_ended()
        return None if ended is None else self._first("call", *RELEASING, after=ended)

    def machine_gone(self) -> float | None:
        """When the last machine and the last Node were gone."""
        ended = self.training_ended() or 0
        return max(
            (e.at for e in self._entries if e.subject in ("machine", "node") and e.what == "gone" and e.at > ended),
            default=None,
        )

    def phases(self) -> tuple[Phase, ...]:
        """The stages before the run, then the run cut at its milestones, those that came, in order."""
        stages = [
            Phase(name=entry.name, seconds=round(float(entry.what.split()[1]), 2))
            for entry in self._entries
            if entry.subject == "stage" and entry.what.startswith("took ")
        ]
        milestones = [
            ("Airflow starts the first task", self._first("task", "running")),
            ("node group made and grown", self._first("machine", "launched")),
            ("machine boots", self._first("node")),
            ("node ready", self._first("node", "Ready")),
            ("GPUs allocatable", self.gpus_allocatable()),
            ("training pod starts", self._first("pod", TRAINING_STARTED)),
            ("training", self.training_ended()),
            ("release: training's end -> the call", self.release()),
            ("machine goes", self.machine_gone()),
            ("run ends", self._first("run", "success", "failed")),
        ]
        begin = self.triggered()
        for name, at in milestones:
            if begin is not None and at is not None and at >= begin:
                stages.append(Phase(name=name, seconds=round(at - begin, 2)))
                begin = at
        return tuple(stages)

    def hops(self) -> tuple[Phase, ...]:
        """The way from the training's end to the release call, cut where Airflow hands over."""
        ended, release = self.training_ended(), self.release()
        if ended is None or release is None:
            return ()
        back = self._first("worker", name=self._train, after=ended)
        collected = self._first("task", "success", "failed", "up_for_retry", name=self._train, after=ended)
        begun = self._first("worker", name=self._release, after=ended)
        moments = [
            ("Airflow: trigger's event -> a worker is back in the training task", back),
            ("result, log and pod are collected", collected),
            ("Airflow: the task's end -> a worker begins the scale-down", begun),
            ("scale-down looks, decides and calls", release),
        ]
        hops = []
        for name, at in moments:
            if at is not None and at >= ended:
                hops.append(Phase(name=name, seconds=round(at - ended, 2)))
                ended = at
        return tuple(hops)

    def rank_nodes(self) -> tuple[str, ...]:
        """Where each rank ran last, rank 0 first."""
        last = {entry.rank: entry.where for entry in self._started()}
        return tuple(last[rank] for rank in sorted(last))

    def attempts(self) -> int:
        """How often that rank began which began most often: in an attempt that ends early another may never run."""
        begun = Counter(entry.rank for entry in self._started())
        return max(begun.values(), default=0)

    def zone(self, node: str) -> str:
        """A node's zone, as its entries' place begins; empty for one that was never seen."""
        places = [entry.where for entry in self._entries if entry.subject == "node" and entry.name == node]
        return next((place.split()[0] for place in places if place), "")

    def _started(self) -> list[Entry]:
        return [e for e in self._entries if e.subject == "pod" and e.what == TRAINING_STARTED]

    def node_count(self) -> tuple[tuple[float, int], ...]:
        begin = self.triggered()
        nodes: set[str] = set()
        counts = [(0.0, 0)]
        for entry in self._entries:
            if entry.subject != "node" or begin is None:
                continue
            nodes = nodes - {entry.name} if entry.what == "gone" else nodes | {entry.name}
            if len(nodes) != counts[-1][1]:
                counts.append((round(entry.at - begin, 2), len(nodes)))
        return tuple(counts)


def chart(node_count: Sequence[tuple[float, int]], *, seconds: float, width: int = 60) -> list[str]:
    """Node count over time as text, highest row first; each column is the most that its time saw."""
    top = max(1, *(count for _, count in node_count))
    columns = []
    for column in range(width):
        begin, end = seconds * column / width, seconds * (column + 1) / width
        before = [count for at, count in node_count if at <= begin][-1:]
        within = [count for at, count in node_count if begin < at < end]
        columns.append(max([0, *before, *within]))
    rows = [
        f"{level:>3} |" + "".join("█" if count >= level else " " for count in columns) for level in range(top, 0, -1)
    ]
    end_label = f"{seconds:.0f} s"
    return [*rows, f"  0 +{'-' * width}", f"    0{end_label:>{width}}"]


def render(report: Report) -> str:
    """The human-readable report."""
    longest = max((len(phase.name) for phase in (*report.phases, *report.hops)), default=0)
    lines = ["", "Timeline"]
    lines += [f"  {phase.name:<{longest}} {phase.seconds:7.1f} s" for phase in report.phases]
    run_seconds = sum(phase.seconds for phase in report.phases if phase.name not in STAGES)
    lines += ["", "GPU nodes"]
    lines += [f"  {row}" for row in chart(report.node_count, seconds=max(run_seconds, 1))]
    lines += ["", "From the training's end to the release call"]
    lines += [f"  {hop.name:<{longest}} {hop.seconds:7.1f} s" for hop in report.hops]
    lines += ["", *_figures(report), "", *_verdict(report)]
    return "\n".join(lines)


def _figures(report: Report) -> list[str]:
    figures = [
        ("release call after the training's end", _seconds(report.release_seconds)),
        ("    of which Airflow's own hops", _seconds(report.airflow_hops_seconds)),
        ("machine and Node gone after", _seconds(report.node_gone_seconds)),
        ("cluster-autoscaler, for comparison", f"{report.cluster_autoscaler_release_seconds} s to its release call"),
        ("most GPU nodes at once", str(report.max_nodes_seen)),
        *_ranks(report),
        ("accuracy on held-out digits", "none" if report.accuracy is None else f"{report.accuracy:.4f}"),
        ("Kubernetes", report.kubernetes_version),
    ]
    return [f"{name:<40} {value}" for name, value in figures]


def _ranks(report: Report) -> list[tuple[str, str]]:
    if report.nodes == 1:
        return []
    places = zip(report.rank_nodes, report.rank_zones, strict=True)
    where = [(f"rank {rank}", f"{node} ({zone})") for rank, (node, zone) in enumerate(places)]
    return [("attempts", str(report.attempts)), *where]


def _verdict(report: Report) -> list[str]:
    left = (
        f"{report.nodes_after} nodes, {report.machines_after} machines, desired size {report.desired_after}, "
        f"{report.gpu_pods_after} GPU pods"
    )
    state = {"success": "green", "failed": "red"}.get(report.dag_run_state, report.dag_run_state)
    should = "as it should be" if report.dag_run_state == report.expected_state else "which it should NOT be"
    return [
        f"The run is {state}, {should}.",
        *([] if report.together else [f"The ranks were NOT on {report.nodes} nodes of one zone."]),
        "Nothing is left." if report.clean else f"LEFT BEHIND: {left}.",
    ]


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(end - begin, 2)


def _sum(seconds: Iterable[float]) -> float | None:
    found = list(seconds)
    return round(sum(found), 2) if found else None
