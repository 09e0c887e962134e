"""The demonstration's report: its figures, from entries that were written down by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.demo_journal import Entry, Journal, Subject
from gpu_sandbox.demo_report import (
    TRAINING_ENDED,
    TRAINING_STARTED,
    Report,
    chart,
    make_report,
    render,
)
from gpu_sandbox.leftovers import Leftovers

NOTHING = Leftovers(nodes=0, machines=0, desired=0, gpu_pods=0)


def entry(at: float, subject: Subject, name: str, what: str, where: str = "", rank: int = 0) -> Entry:
    return Entry(at=at, subject=subject, name=name, what=what, where=where, rank=rank)


GOOD_NIGHT = [
    entry(1, "stage", "sandbox up", "took 5.00 s"),
    entry(2, "stage", "Airflow up", "took 14.00 s"),
    entry(100, "run", "r1", "triggered"),
    entry(102, "task", "train-gpu.ensure", "running"),
    entry(103, "call", "eks", "CreateNodegroup"),
    entry(105, "call", "autoscaling", "SetDesiredCapacity"),
    entry(106, "machine", "i-1", "launched"),
    entry(109, "node", "n1", "joined", "us-west-2a g6.xlarge ON_DEMAND"),
    entry(110, "node", "n1", "Ready"),
    entry(112, "node", "n1", "Ready, 1 GPU"),
    entry(118, "pod", "train-x", TRAINING_STARTED, "n1"),
    entry(128, "pod", "train-x", TRAINING_ENDED),
    entry(131, "worker", "train", "begins"),
    entry(132, "task", "train", "success"),
    entry(135, "worker", "train-gpu.scale_down", "begins"),
    entry(136, "call", "autoscaling", "TerminateInstanceInAutoScalingGroup"),
    entry(137, "machine", "i-1", "gone"),
    entry(138, "node", "n1", "gone"),
    entry(140, "run", "r1", "success"),
]


def report_of(entries: list[Entry], **changes: object) -> Report:
    arguments: dict[str, object] = {
        "run_state": "success",
        "expected_state": "success",
        "accuracy": 0.98,
        "leftovers": NOTHING,
        "kubernetes_version": "v1.36.3",
        "faults": (),
        "train_task": "train",
        "release_task": "scale_down",
    }
    return make_report(entries, **(arguments | changes))  # type: ignore[arg-type]


def test_the_figures_of_a_good_night() -> None:
    report = report_of(GOOD_NIGHT)
    assert (report.release_seconds, report.node_gone_seconds) == (8, 10)
    assert [hop.seconds for hop in report.hops] == [3, 1, 3, 1]
    assert report.airflow_hops_seconds == 6
    assert report.max_nodes_seen == 1
    assert report.node_count == ((0, 0), (9, 1), (38, 0))
    assert report.good


def test_the_phases_are_in_order_and_add_up() -> None:
    phases = report_of(GOOD_NIGHT).phases
    assert [phase.name for phase in phases] == [
        "sandbox up",
        "Airflow up",
        "Airflow starts the first task",
        "node group made and grown",
        "machine boots",
        "node ready",
        "GPUs allocatable",
        "training pod starts",
        "training",
        "release: training's end -> the call",
        "machine goes",
        "run ends",
    ]
    assert sum(phase.seconds for phase in phases[2:]) == 40


def test_growing_calls_before_the_training_ends_are_no_release() -> None:
    without_release = [e for e in GOOD_NIGHT if not e.what.startswith("Terminate")]
    assert report_of(without_release).release_seconds is None


def test_the_last_machine_counts() -> None:
    second = [entry(107, "machine", "i-2", "launched"), entry(150, "machine", "i-2", "gone")]
    assert report_of(GOOD_NIGHT + second).node_gone_seconds == 22


def test_a_night_that_ended_early_has_a_report_too() -> None:
    report = report_of(GOOD_NIGHT[:5], run_state="failed", accuracy=None)
    assert report.release_seconds is None
    assert report.airflow_hops_seconds is None
    assert not report.good
    assert "The run is red, which it should NOT be." in render(report)


def test_a_red_night_is_good_when_it_should_be_red() -> None:
    report = report_of(GOOD_NIGHT, run_state="failed", expected_state="failed")
    assert report.good
    assert "The run is red, as it should be." in render(report)


def test_what_is_left_makes_a_green_night_bad() -> None:
    report = report_of(GOOD_NIGHT, leftovers=Leftovers(nodes=0, machines=1, desired=1, gpu_pods=0))
    assert not report.good
    assert "LEFT BEHIND: 0 nodes, 1 machines, desired size 1, 0 GPU pods." in render(report)


def test_the_json_has_what_was_promised() -> None:
    promised = {
        "dag_run_state",
        "accuracy",
        "max_nodes_seen",
        "nodes_after",
        "desired_after",
        "release_seconds",
        "node_gone_seconds",
        "phases",
        "kubernetes_version",
    }
    assert promised <= report_of(GOOD_NIGHT).as_json().keys()


def test_the_chart() -> None:
    assert chart([(0, 0), (10, 1), (20, 2), (30, 0)], seconds=40, width=8) == [
        "  2 |    ██  ",
        "  1 |  ████  ",
        "  0 +--------",
        "    0    40 s",
    ]


@given(
    changes=st.lists(st.tuples(st.floats(0.01, 99), st.integers(0, 5)), max_size=20),
    width=st.integers(10, 80),
)
def test_the_chart_shows_every_peak(changes: list[tuple[float, int]], width: int) -> None:
    counts = [(0.0, 0), *sorted(changes)]
    rows = chart(counts, seconds=100, width=width)
    top = max(1, *(count for _, count in counts))
    assert len(rows) == top + 2
    assert ("█" in rows[0]) == any(count for _, count in counts)


def test_the_journal_writes_a_state_once() -> None:
    journal = Journal()
    heard: list[Entry] = []
    journal.listen(heard.append)
    for state in ("Pending", "Pending", "Running", "Running"):
        journal.write_change("pod", "p", state)
    assert [e.what for e in heard] == ["Pending", "Running"]
    assert journal.last("pod", "p") == "Running"
    assert journal.last("pod", "other") is None


# Rank 1's machine goes; both start again, rank 1 on a new one.
TWO_ATTEMPTS = [
    *(entry(1, "node", name, "joined", "us-west-2b g6.xlarge SPOT") for name in ("n1", "n2", "n3")),
    entry(2, "node", "n4", "joined", "us-west-2a g6.xlarge SPOT"),
    entry(3, "pod", "t-0", TRAINING_STARTED, "n1", rank=0),
    entry(3, "pod", "t-1", TRAINING_STARTED, "n2", rank=1),
    entry(5, "pod", "u-1", TRAINING_STARTED, "n3", rank=1),
    entry(6, "pod", "u-0", TRAINING_STARTED, "n1", rank=0),
]


def test_ranks_are_those_of_the_last_attempt() -> None:
    report = report_of(TWO_ATTEMPTS, nodes=2)
    assert (report.ranks, report.attempts) == (2, 2)
    assert report.rank_nodes == ("n1", "n3")
    assert report.rank_zones == ("us-west-2b", "us-west-2b")
    assert report.good
    assert "rank 1" in render(report)


def test_ranks_on_one_node_in_two_zones_or_too_few_are_no_good_night() -> None:
    on_one = [*TWO_ATTEMPTS, entry(7, "pod", "v-1", TRAINING_STARTED, "n1", rank=1)]
    apart = [*TWO_ATTEMPTS, entry(7, "pod", "v-1", TRAINING_STARTED, "n4", rank=1)]
    for entries in (on_one, apart, GOOD_NIGHT):
        assert not report_of(entries, nodes=2).good
    assert "NOT on 2 nodes of one zone" in render(report_of(apart, nodes=2))
    assert report_of(GOOD_NIGHT).good
