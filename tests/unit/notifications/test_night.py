"""The two lines of a night, from what its tasks left in XCom."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import GpuError, PodFailed, error_types
from airflow_gpu_provider.notifications import for_chat
from airflow_gpu_provider.notifications.night import Failure, Night, night
from airflow_gpu_provider.training.life.diagnosis import with_last_lines
from airflow_gpu_provider.untrusted import plain

RUN: dict[str, Any] = {"dag_id": "nightly", "run_id": "scheduled__2026-03-01"}
ENSURED = {
    "nodes": [{"name": "ip-10-0-1-7", "instance_type": "g6.xlarge", "zone": "us-west-2a"}],
    "tried": [{"zone": "us-west-2b", "instance_type": "g6.xlarge", "times": 3, "why": "no capacity"}],
    "timeline": [
        {"phase": "asked", "at": "2026-03-01T02:00:00.000000Z", "seconds": 60.0},
        {"phase": "node joined", "at": "2026-03-01T02:00:30.000000Z", "seconds": 480.0},
    ],
}
TRAINED = [
    {"phase": "waited for a node", "at": "2026-03-01T02:09:00.000000Z", "seconds": 30.0},
    {"phase": "ran", "at": "2026-03-01T02:10:00.000000Z", "seconds": 7860.0},
]
USED = {"machines": 1, "at_least": None, "cost": {"total": 2.4094}, "currency": "USD"}


def test_a_red_night_in_two_lines() -> None:
    oom = Failure(task="train", type="GpuOutOfMemory", what="22.9 of 23 GiB were in use.", fix="Use a larger GPU.")
    seen = night(
        **RUN, state="failed", failures=[oom], ensured=[ENSURED], trainings=[TRAINED], usages=[USED], left=["all gone"]
    )
    assert seen.in_words.splitlines() == [
        "nightly scheduled__2026-03-01: failed. train: GpuOutOfMemory: 22.9 of 23 GiB were in use. Use a larger GPU.",
        "waited 9 min 0 s (no capacity 3 times), ran 2 h 11 min on 1 node (g6.xlarge), cost 2.41 USD; all gone.",
    ]


def a_bill(*machines: str, pool: str = "gpu", **more: Any) -> dict[str, Any]:
    lanes = [
        {"machine": each, "launched_at": "2026-03-01T02:00:00.000000Z", "instance_type": f"{each[:-2]}.xlarge"}
        for each in machines
    ]
    return {**USED, "machines": len(machines), "timeline": lanes, "timeline_left_out": 0, "pool": pool, **more}


def was_released(nodes: int = 0, *kept: str, pool: str = "gpu", at: int = 0) -> dict[str, Any]:
    at_time = f"2026-03-01T0{at}:00:00.000000Z"
    return {"pool": pool, "nodes": nodes, "desired": nodes, "kept": list(kept), "at": at_time}


def test_machines_that_several_blocks_used_count_once_and_each_with_its_type() -> None:
    bills = [a_bill("g6-0", "g6e-1"), a_bill("g6-0", "g6e-1"), a_bill("g6-0")]
    seen = night(**RUN, state="success", ensured=[ENSURED], trainings=[TRAINED], usages=bills)
    assert (seen.machines, seen.types) == (2, ["g6.xlarge", "g6e.xlarge"])
    assert "on 2 nodes (g6.xlarge, g6e.xlarge)" in seen.what_it_took
    one = night(**RUN, state="success", ensured=[ENSURED], trainings=[TRAINED], usages=[a_bill("g6e-1")])
    assert "on 1 node (g6e.xlarge)" in one.what_it_took


def test_a_name_that_two_machines_had_counts_twice() -> None:
    later = a_bill("g6-0")
    later["timeline"][0]["launched_at"] = "2026-03-01T03:00:00.000000Z"
    assert night(**RUN, state="success", usages=[a_bill("g6-0"), later]).machines == 2


def test_bills_of_more_machines_than_they_list_are_at_least_that_many() -> None:
    many = a_bill("g6-0", "g6-1", machines=70, timeline_left_out=68)
    assert night(**RUN, state="success", usages=[many, many]).machines == 70


@pytest.mark.parametrize(
    ("released", "words"),
    [
        ([was_released(2, "kept for b", at=1), was_released(at=2)], "all nodes released"),
        ([was_released(at=3), was_released(2, "kept for b", at=1)], "all nodes released"),
        ([was_released(at=1), was_released(1, "min_nodes=1", at=2)], "pool gpu keeps 1 of its nodes (min_nodes=1)"),
        (
            [was_released(2, at=2), was_released(pool="cpu", at=1)],
            "pool gpu keeps 2 of its nodes; all nodes of pool cpu released",
        ),
    ],
)
def test_what_is_left_of_a_pool_is_what_its_last_scale_down_found(released: list[Any], words: str) -> None:
    assert night(**RUN, state="success", usages=[a_bill("g6-0")], released=released).left == words


@pytest.mark.parametrize(
    ("usages", "words"),
    [
        ([a_bill()], "no node was started"),
        ([a_bill(), a_bill("g6-0")], "all nodes released"),
        ([a_bill(at_least="the cloud did not answer")], "all nodes released"),
        ([], "all nodes released"),
    ],
)
def test_a_run_that_started_no_node_has_released_none(usages: list[Any], words: str) -> None:
    assert night(**RUN, state="success", usages=usages, released=[was_released()]).left == words


def test_a_time_of_the_last_try_alone_is_named_so() -> None:
    phases = [{**TRAINED[1], "try": 3}]
    seen = night(**RUN, state="success", trainings=[phases], usages=[USED])
    assert "ran 2 h 11 min on 1 node, in the last of 3 tries, cost" in seen.what_it_took


def test_what_would_have_made_trainings_faster_is_told_once_and_in_no_line() -> None:
    told = "NCCL uses NET/Socket"
    seen = night(**RUN, state="success", trainings=[TRAINED], advice=[[told, "the pull took long"], [told]])
    assert seen.advice == (told, "the pull took long")
    assert told not in seen.in_words


def test_attempts_after_preemptions_are_summed() -> None:
    phases = [{**TRAINED[1], "attempt": 1}, {**TRAINED[1], "attempt": 2, "seconds": 60.0}]
    seen = night(**RUN, state="success", trainings=[phases], usages=[USED], left=["all nodes released"])
    assert seen.what_it_took.startswith("waited 0 s, ran 2 h 12 min on 1 node in 2 attempts, cost 2.41 USD;")


@pytest.mark.parametrize(
    ("usages", "words"),
    [
        ([{**USED, "cost": {"total": "unknown"}}], "cost unknown"),
        ([USED, {**USED, "cost": {"total": "unknown"}}], "cost at least 2.41 USD"),
        ([{**USED, "at_least": "a machine was seen late"}], "cost at least 2.41 USD"),
        ([USED, USED], "cost 4.82 USD"),
        ([USED, {**USED, "over_max_cost": 0.4094}], "cost 4.82 USD, 0.41 USD more than max_cost;"),
        ([{**USED, "over_max_cost": None}], "cost 2.41 USD;"),
        ([USED, {**USED, "price_source": "list price"}], "cost 4.82 USD (list price)"),
        ([{**USED, "price_source": "spec"}], "cost 2.41 USD;"),
    ],
)
def test_a_cost_that_is_not_known_is_never_zero(usages: list[Any], words: str) -> None:
    assert words in night(**RUN, state="success", usages=usages).what_it_took


def test_machines_that_may_be_left_come_first_and_the_verdict_is_not_repeated() -> None:
    failures = [
        Failure(task="train", type="PodFailed", what="It exited with 1."),
        Failure(task="gpu.done", type="BlockFailed", what="Tasks failed: train: failed."),
        Failure(task="gpu.scale_down", type="PoolNotReleased", what="Still there: i-0abc."),
    ]
    seen = night(**RUN, state="failed", failures=failures)
    assert [each.task for each in seen.failures] == ["gpu.scale_down", "train"]


@pytest.mark.parametrize(
    ("verdict", "is_told"),
    [
        ("Tasks failed: extract: failed; train: 1 success, 1 failed (map index 1).", False),
        ("Tasks failed: extract: failed; load: upstream_failed.", True),
        ("The run was marked before its tasks had ended: train: skipped.", True),
    ],
)
def test_a_verdict_that_says_more_than_the_others_is_told(verdict: str, is_told: bool) -> None:
    failures = [
        Failure(task="extract"),
        Failure(task="train[1]"),
        Failure(task="gpu.done", type="BlockFailed", what=verdict),
    ]
    seen = night(**RUN, state="failed", failures=failures)
    assert ("BlockFailed" in seen.what_happened) is is_told


def test_a_verdict_alone_is_told() -> None:
    seen = night(**RUN, state="failed", failures=[Failure(task="gpu.done", type="BlockFailed", what="It was marked.")])
    assert "It was marked." in seen.what_happened


def test_of_many_failures_three_are_named() -> None:
    seen = night(**RUN, state="failed", failures=[Failure(task=f"train[{n}]") for n in range(7)])
    assert seen.what_happened.endswith("train[0] failed. train[1] failed. train[2] failed. 4 more tasks failed.")


def test_a_night_of_which_nothing_is_known() -> None:
    seen = night(**RUN, state="failed")
    assert seen.in_words == "nightly scheduled__2026-03-01: failed.\nNo scale-down has ended yet."


@pytest.mark.parametrize("kind", error_types(), ids=lambda kind: kind.__name__)
def test_each_type_of_error_is_named_with_its_sentences(kind: type[GpuError]) -> None:
    error = kind("The pool has no quota.", "Ask for more.")
    failure = Failure(task="train", type=type(error).__name__, what=error.what, fix=error.fix)
    words = Night(**RUN, state="failed", failures=[failure]).what_happened
    assert words.endswith(f"failed. train: {kind.__name__}: The pool has no quota. Ask for more.")


WRITTEN = [
    "ValueError: <!channel> your session ended: <https://elsewhere.example/login|log in to Airflow>",
    "ask <@U012AB3CD> & @everyone, or @here",
    "[log in](https://elsewhere.example) [here][1]",
    "``` the rest is code",
    "\x1b]8;;https://elsewhere.example\x07out\x1b]8;;\x07 of \x1b[2Jmemory \u202egnp.exe\x00",
    "first\r\nsecond\u2028third",
]


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.parametrize("where", ["failure", "left", "state", "run_id"])
def test_nothing_that_somebody_wrote_is_markup_in_a_chat(text: str, where: str) -> None:
    fields: dict[str, Any] = {**RUN, "state": "failed"}
    if where == "failure":
        error = with_last_lines(PodFailed(f"Pod p failed ({text}).", "See its log."), [text, text])
        fields["failures"] = [Failure(task="train", type="PodFailed", what=error.what, fix=error.fix)]
    else:
        fields[where] = [text] if where == "left" else text
    seen = night(**fields)
    words = seen.in_words
    for markup in ("<", "@e", "@h", "@U", "](", "][", "`", "&amp;lt", "\x1b", "\x07", "\u202e", "\x00", "\r", "\u2028"):
        assert markup not in words
    assert words == f"{seen.what_happened}\n{seen.what_it_took}"
    assert (words.count("\n"), seen.in_plain_words.count("\n")) == (1, 1)
    shown = unescape(words.replace("\u200b", ""))  # as Slack and HTML show it
    assert shown == seen.in_plain_words.replace("`", "'")


@given(st.text(max_size=60))
def test_a_chat_shows_each_text_as_it_was_written(text: str) -> None:
    assert unescape(for_chat(text)).replace("\u200b", "") == plain(text).replace("`", "'").replace("\u200b", "")


def test_plain_words_are_as_they_were_written() -> None:
    failed = Failure(task="train", type="PodFailed", what="a < b & c@d", fix="Run `x`.")
    assert "train: PodFailed: a < b & c@d Run `x`." in night(**RUN, state="failed", failures=[failed]).in_plain_words


def test_a_message_of_long_errors_is_short_enough_for_a_chat() -> None:
    """Discord takes 2,000 characters; the beginning has what happened, the end the last line of the log."""
    errors = [Failure(task=f"t{n}", type="PodFailed", what="w" * 900, fix="f" * 3000 + " the end") for n in range(5)]
    text = night(dag_id="d" * 100, run_id="manual__2026-01-01T00:00:00+00:00", state="failed", failures=errors).in_words
    assert len(text) < 2000
    assert text.count("the end") == 3
