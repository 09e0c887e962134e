"""Reading a container's log in pieces: each line once, however the readings are cut and whatever the stamps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_log import (
    LONGEST_LINE,
    LineSplitter,
    LogPosition,
    LogReader,
    log_line,
    positions_from_record,
    positions_to_record,
)

START = int(datetime(2026, 1, 1, 3, 0, tzinfo=UTC).timestamp())


def stamped(at: int, text: str) -> bytes:
    """One line as the kubelet writes it, `at` in nanoseconds since the epoch."""
    second = datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{at % 10**9:09d}Z {text}".encode()


def answer(log: Sequence[tuple[int, str]], parameters: dict[str, str]) -> list[bytes]:
    """What a kubelet answers: the lines of sinceTime or later, in the order of the file."""
    since = datetime.fromisoformat(parameters.get("sinceTime", "1970-01-01T00:00:00Z")).timestamp() * 10**9
    return [stamped(at, text) for at, text in log if at >= since]


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Lines of two streams: stamps mostly grow, are sometimes equal, and are out of order by less than a second."""
    steps = draw(st.lists(st.sampled_from([0, 1, 10**6, 4 * 10**8, 10**9, 7 * 10**9]), max_size=40))
    at, lines = START * 10**9, []
    for number, step in enumerate(steps):
        at += step
        late = draw(st.sampled_from([0, 0, 0, 1, 10**6, 9 * 10**8]))
        lines.append((at - late, f"line {number}"))
    return lines


def read(reader: LogReader, lines: Sequence[bytes]) -> list[str]:
    return [text for line in lines if (text := reader.take(line)) is not None]


@given(log=logs(), cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_each_line_is_told_once_however_readings_are_cut(
    log: list[tuple[int, str]], cuts: list[tuple[int, int]]
) -> None:
    reader = LogReader()
    told: list[str] = []
    for written, received in [*cuts, (40, 40)]:
        written = max(written, len(told))  # a log does not shrink
        told += read(reader, answer(log[:written], reader.begin())[:received])
    told += read(reader, answer(log, reader.begin()))
    assert told == [text for _, text in log]


@given(log=logs(), written=st.integers(0, 40), received=st.integers(0, 40))
def test_another_reader_goes_on_from_a_position_that_was_kept(
    log: list[tuple[int, str]], written: int, received: int
) -> None:
    first = LogReader()
    told = read(first, answer(log[:written], first.begin())[:received])
    kept = positions_to_record({"base": first.position})
    second = LogReader(positions_from_record(kept)["base"])
    told += read(second, answer(log, second.begin()))
    assert told == [text for _, text in log]


@given(log=logs(), kept_at=st.integers(0, 40), died_at=st.integers(0, 40))
def test_from_an_older_position_only_what_came_since_is_repeated(
    log: list[tuple[int, str]], kept_at: int, died_at: int
) -> None:
    kept_at, died_at = sorted((min(kept_at, len(log)), min(died_at, len(log))))
    first = LogReader()
    lines = answer(log, first.begin())
    read(first, lines[:kept_at])
    position = first.position
    read(first, lines[kept_at:died_at])
    second = LogReader(position)
    assert read(second, answer(log, second.begin())) == [text for _, text in log[kept_at:]]


def test_lines_that_the_kubelet_rotated_away_do_not_cost_new_ones() -> None:
    log = [(START * 10**9 + number, f"line {number}") for number in range(10)]
    reader = LogReader()
    read(reader, answer(log[:8], reader.begin()))
    assert read(reader, answer(log[5:], reader.begin())) == ["line 8", "line 9"]


@given(log=logs(), cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_no_gap_is_told_where_nothing_was_rotated_away(log: list[tuple[int, str]], cuts: list[tuple[int, int]]) -> None:
    reader, kept = LogReader(), 0
    for written, received in [*cuts, (40, 40)]:
        kept = written = max(written, kept)  # a log does not shrink
        for line in answer(log[:written], reader.begin())[:received]:
            reader.take(line)
            assert not reader.is_after_gap


def test_gap_is_told_where_none_of_the_lines_that_were_read_last_is_left() -> None:
    reader = LogReader()
    second = START * 10**9
    log = [(second + offset * 10**9, f"line {offset}") for offset in range(6)]
    read(reader, answer(log[:3], reader.begin()))
    for line in answer(log[4:], reader.begin()):
        reader.take(line)
        assert reader.is_after_gap == (line == stamped(*log[4]))
    read(reader, answer(log[5:], reader.begin()))
    assert not reader.is_after_gap, "the last line that was read is there"


def test_next_run_of_a_container_comes_after_no_gap() -> None:
    reader = LogReader()
    read(reader, answer([(START * 10**9, "last")], reader.begin()))
    reader = reader.of_next_run()
    assert read(reader, answer([(START * 10**9 + 1, "first")], reader.begin())) == ["first"]
    assert not reader.is_after_gap


def test_request_asks_for_whole_seconds() -> None:
    reader = LogReader()
    assert reader.begin() == {"timestamps": "true"}
    reader.take(stamped(START * 10**9 + 5 * 10**8, "x"))
    assert reader.begin() == {"timestamps": "true", "sinceTime": "2026-01-01T02:59:59Z"}


def test_position_does_not_change_while_old_lines_are_skipped() -> None:
    log = [(START * 10**9 + number, f"line {number}") for number in range(3)]
    reader = LogReader()
    read(reader, answer(log, reader.begin()))
    before = reader.position
    read(reader, answer(log, reader.begin())[:1])
    assert reader.position == before == LogPosition(since=START - 1, seen=3, newest=log[-1][0])


@pytest.mark.parametrize(
    "stamp", ["2026-01-01T03:00:00.5Z", "2026-01-01T03:00:00.500000000Z", "2026-01-01T05:00:00.500000000+02:00"]
)
def test_stamps_of_any_zone_and_precision(stamp: str) -> None:
    reader = LogReader()
    assert reader.take(f"{stamp} text of it".encode()) == "text of it"
    assert reader.position.newest == START * 10**9 + 5 * 10**8


@pytest.mark.parametrize("line", [b"the end of a long line", b"2026-01-01 no stamp", b"", b"\xff\xfe"])
def test_line_without_a_stamp_is_told_and_not_counted(line: bytes) -> None:
    reader = LogReader()
    assert reader.take(line) == line.decode(errors="backslashreplace")
    assert reader.position == LogPosition()


def test_end_of_a_long_line_that_was_read_before_does_not_come_again() -> None:
    reader = LogReader()
    log = [(START * 10**9, "a bar that took an hour"), ((START + 3600) * 10**9, "line 1")]
    read(reader, answer(log, reader.begin()))
    log.append(((START + 3601) * 10**9, "line 2"))
    assert read(reader, [b"took an hour", *answer(log, reader.begin())]) == ["line 2"]


# -- pieces ----------------------------------------------------------------------------------------------------


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=6).map(str.encode), max_size=12))
def test_lines_are_those_of_the_whole_log_however_it_is_cut(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    whole, _, rest = b"".join(pieces).rpartition(b"\n")
    assert lines == (whole.split(b"\n") if b"\n" in b"".join(pieces) else [])
    assert splitter.last() == ([rest] if rest else [])


def test_line_without_end_is_cut_where_it_is_too_long_and_says_so() -> None:
    splitter = LineSplitter()
    for _ in range(40):
        assert splitter.feed(b"\r 10% " * 10_000) == []
    line, next_line = splitter.feed(b"\nnext\n")
    assert next_line == b"next"
    assert len(line) < LONGEST_LINE + 50
    assert line.endswith(b" ... (%d more bytes)" % (40 * 60_000 - LONGEST_LINE))


# -- in the task's log -----------------------------------------------------------------------------------------


def written(text: str, **options: object) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []

    def log(level: int, text: str, *arguments: object) -> None:
        lines.append((level, text % arguments))

    log_line(log, "base", text, **{"with_name": True, **options})  # type: ignore[arg-type]
    return lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("epoch 1 100% done", (logging.INFO, "[base] epoch 1 100% done")),
        ("[WARNING] slow", (logging.WARNING, "[base] [WARNING] slow")),
        ("error: no", (logging.ERROR, "[base] error: no")),
        ("Fatal: no", (logging.CRITICAL, "[base] Fatal: no")),
        ("Information", (logging.INFO, "[base] Information")),
        ("::group::epoch 1", (logging.INFO, "::group::epoch 1")),
    ],
)
def test_line_has_its_container_and_its_level(text: str, line: tuple[int, str]) -> None:
    assert written(text) == [line]


def test_blank_line_is_left_out() -> None:
    assert written(" \t") == []


def test_formatter_makes_the_line() -> None:
    assert written("x", formatter=lambda container, text: f"{text}@{container}") == [(logging.INFO, "x@base")]
    assert written("x", with_name=False) == [(logging.INFO, "x")]
