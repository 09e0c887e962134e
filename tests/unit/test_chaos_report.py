"""What the chaos matrix makes of what it has seen: which pod was killed, what a night owes, and the page it writes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.airflow.chaos.cell import Cell, Strike
from tests.airflow.chaos.checks import has_trained, lost_trainings, promise_of
from tests.airflow.chaos.matrix import NotRun
from tests.airflow.chaos.moments import MOMENTS
from tests.airflow.chaos.pods import PodStory
from tests.airflow.chaos.report import by_moment, counts, read_json, write_json, write_tables
from tests.airflow.chaos.world import PoolLeft
from tests.unit.chaos_row import ROW

RUNNING = PodStory(uid="1", name="train-1", pool="c1", run_id="c1", phase="Running")
FAILED = NotRun.of(
    Cell(number=0, seed=7, strikes=(Strike(when="train-deferred", what="two-runs"),)), "MomentMissed('c0')", seconds=720
)


@pytest.mark.parametrize(
    ("pod", "killed"),
    [
        (RUNNING, False),
        (replace(RUNNING, exit_code=0, phase="Succeeded"), False),
        (replace(RUNNING, exit_code=0, gone=True), False),
        (replace(RUNNING, deleted_early=True), True),
        (replace(RUNNING, exit_code=137), True),
        (replace(RUNNING, gone=True), True),
    ],
)
def test_a_training_that_was_there_and_did_not_end_by_itself_is_lost(pod: PodStory, killed: bool) -> None:
    assert pod.killed is killed
    assert bool(lost_trainings([RUNNING], [pod])) is killed


@pytest.mark.parametrize(
    ("of", "is_zero"),
    [
        ((), (True, True, True)),
        (("groups",), (True, True, False)),
        (("groups", "templates"), (True, False, False)),
        (("placement_groups",), (True, False, False)),
        (("interfaces",), (False, False, False)),
        (("prefetches",), (False, False, False)),
        (("code",), (False, False, False)),
        (("instances", "interfaces", "groups"), (False, False, False)),
    ],
)
def test_what_stays_until_its_pool_is_deleted_is_no_machine_and_not_nothing(
    of: tuple[str, ...], is_zero: tuple[bool, bool, bool]
) -> None:
    counts = dict.fromkeys((field.name for field in fields(PoolLeft)), 0) | dict.fromkeys(of, 1)
    left = PoolLeft(**counts)
    assert (left.no_machines, left.nothing, left.nothing_at_all) == is_zero


def test_a_gang_has_trained_when_each_of_its_ranks_has_ended_well() -> None:
    ended = replace(RUNNING, exit_code=0)
    assert has_trained([replace(RUNNING, exit_code=137), ended])
    assert not has_trained([])
    assert not has_trained([ended, replace(RUNNING, rank=1)])
    assert has_trained([ended, replace(RUNNING, rank=1, gone=True), replace(ended, rank=1)])


def test_no_rank_is_owed_to_go_on_where_its_peer_is_lost() -> None:
    assert Strike(when="gang-running", what="api-server-down").promise.keeps_pod
    assert not Strike(when="rank-lost", what="api-server-down").promise.keeps_pod


def test_a_night_that_is_struck_twice_owes_what_both_faults_leave_it() -> None:
    def promise(*strikes: tuple[str, str]) -> tuple[str, bool, str]:
        owed = promise_of(Cell(number=0, seed=0, strikes=tuple(Strike(when=w, what=f) for w, f in strikes)))
        return owed.ends, owed.keeps_pod, owed.zero_by

    outage = ("train-deferred", "api-server-down")
    assert promise(outage) == ("green", True, "itself")
    assert promise(outage, ("train-ended", "worker-killed")) == ("green", False, "itself")
    assert promise(outage, ("scale-down-begins", "run-deleted")) == ("any", False, "janitor")


def test_a_leak_and_harm_are_never_well_and_a_broken_promise_only_where_airflow_broke_it() -> None:
    assert ROW.is_well
    assert not replace(ROW, seconds_to_zero=None).is_well
    assert not replace(ROW, harmed=["train-2"], airflow="Airflow lost train").is_well
    assert not replace(ROW, broken=["the run is failed"]).is_well
    assert replace(ROW, broken=["the run is failed"], airflow="Airflow lost train").is_well
    rows = [ROW, replace(ROW, seconds_to_zero=None), replace(ROW, broken=["red"], airflow="lost")]
    assert counts(rows) == {"runs": 3, "leaks": 1, "harmed": 0, "broken": 0, "airflow": 1, "failed_to_run": 0}


def test_a_run_writes_its_own_table_and_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    marks = "<!-- matrix: written by the run itself -->\nold\n<!-- end of matrix -->"
    page.write_text(f"# Before\n{marks}\nafter\n")
    for _ in range(2):
        write_tables(
            [ROW, replace(ROW, what=["two-runs"], seconds_to_zero=None, left="1 nodes")], page, "matrix", seed=7
        )
        text = page.read_text()
        assert "**2 runs, 1 leaks, 0 harmed others**" in text
        assert "LEAKED: 1 nodes" in text
        assert "old" not in text
        assert text.startswith("# Before\n")
        assert text.endswith("\nafter\n")
    with pytest.raises(ValueError, match="no marks for drawn"):
        write_tables([ROW], page, "drawn", seed=7)


def test_a_run_that_was_cut_off_goes_on_with_the_rows_that_it_wrote(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, number=2, seconds_to_zero=None)]
    told = tmp_path / "build" / "chaos.json"
    assert read_json(told, "matrix") == []
    write_json(rows, told, "matrix")
    assert read_json(told, "matrix") == rows
    with pytest.raises(ValueError, match="has the rows of a matrix, which a cover cannot go on with"):
        read_json(told, "cover")


def test_what_failed_to_run_is_told_and_is_run_again(tmp_path: Path) -> None:
    page, told = tmp_path / "reliability.md", tmp_path / "chaos.json"
    page.write_text("<!-- cover: written by the run itself -->\n<!-- end of cover -->\n")
    write_tables([ROW, FAILED], page, "cover", seed=7)
    assert "**1 runs, 0 leaks, 0 harmed others**, 0 broke another promise, 0 were lost by Airflow itself, 1 failed" in (
        page.read_text()
    )
    assert "| EKS | train-deferred | two-runs | - | failed to run | 720 s |" in page.read_text()
    assert "MomentMissed('c0') (cell 0, seed 7)" in page.read_text()
    write_json([ROW, FAILED], told, "cover")
    content = json.loads(told.read_text())
    assert content["failed_to_run"] == 1
    assert content["failed"][0]["error"] == "MomentMissed('c0')"
    assert read_json(told, "cover") == [ROW]


def test_the_matrix_tells_failed_to_run_from_not_run() -> None:
    cells = cells_at("train-deferred", by_moment([ROW, FAILED], "eks"))
    assert cells["api-server-down"] == "0"
    assert cells["two-runs"] == "failed to run"
    assert cells["worker-killed"] == "-"
    assert cells["run-deleted"] == "not run"
    assert "job-controller-away" not in cells


def test_trainings_on_two_nodes_have_a_table_of_their_own() -> None:
    row = replace(ROW, when=["gang-running"], what=["job-controller-away"], seconds_to_zero=3.0)
    table = by_moment([ROW, row], "eks", of_gang=True)
    cells = cells_at("gang-running", table)
    assert cells["job-controller-away"] == "3"
    assert cells["worker-killed"] == "-"
    assert cells["one-node-lost"] == "not run"
    assert MOMENTS["train-deferred"].says not in table


def cells_at(moment: str, table: str) -> dict[str, str]:
    """A moment's row, by the names of the faults."""
    _, _, head, _, *rows = table.splitlines()
    (row,) = (row for row in rows if row.startswith(f"| {MOMENTS[moment].says} |"))
    names, told = (line.removesuffix(" |").split(" | ")[1:] for line in (head, row))
    return dict(zip(names, told, strict=True))
