"""KeptLines: what a trigger has logged reaches the worker that starts the next attempt, bounded and masked."""

from __future__ import annotations

import logging

import pytest
from airflow.sdk.log import mask_secret

from airflow_gpu_provider.training.log.trigger_log import LINES, LONGEST, KeptLines, write_again

Line = tuple[int, str]


def again(*lines: Line) -> list[Line]:
    """Return what a worker logs of what a trigger logged."""
    kept = KeptLines(lambda *_: None)
    for level, text in lines:
        kept.log(level, text)
    logged: list[Line] = []
    write_again(lambda level, message, *args: logged.append((level, message % args)), kept.packed(), what="attempt 1")
    return logged


def test_lines_come_in_order_with_their_levels_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.log.trigger_log.time.time", lambda: 1_767_232_825.0)
    head, *lines, end = again((logging.INFO, "[base] step 15, 100 %"), (logging.ERROR, "[base] ERROR: lost"))
    assert lines == [(logging.INFO, "02:00:25Z [base] step 15, 100 %"), (logging.ERROR, "02:00:25Z [base] ERROR: lost")]
    assert "the 2 lines that the triggerer logged of attempt 1" in head[1]
    assert "end" in end[1]


def test_the_last_thousand_are_kept_and_the_others_counted() -> None:
    head, *lines, _ = again(*((logging.INFO, f"line {n}") for n in range(LINES + 500)))
    assert [text.partition(" ")[2] for _, text in lines] == [f"line {n}" for n in range(500, LINES + 500)]
    assert f"the last {LINES} of the {LINES + 500} lines" in head[1]


def test_a_long_line_is_cut() -> None:
    _, (_, line), _ = again((logging.INFO, "x" * (LONGEST + 7)))
    assert line.endswith("x ... (7 more characters)")
    assert len(line) < LONGEST + 50


def test_a_format_has_its_arguments_and_is_passed_on_as_it_is() -> None:
    written: list[tuple[object, ...]] = []
    kept = KeptLines(lambda *line: written.append(line))
    kept.log(logging.INFO, "[%s] %s", "base", "50 % done")
    kept.log(logging.INFO, "a line of 50 % alone")
    assert written == [(logging.INFO, "[%s] %s", "base", "50 % done"), (logging.INFO, "a line of 50 % alone")]
    logged: list[str] = []
    write_again(lambda level, message, *args: logged.append(message % args), kept.packed(), what="attempt 1")
    assert [line.partition(" ")[2] for line in logged[1:-1]] == ["[base] 50 % done", "a line of 50 % alone"]


def test_what_airflow_masks_is_masked_in_what_is_stored() -> None:
    mask_secret("hunter2-of-the-registry")
    _, (_, line), _ = again((logging.INFO, "[base] logs in with hunter2-of-the-registry"))
    assert line.endswith("logs in with ***")


def test_a_thousand_ordinary_lines_are_some_kilobytes() -> None:
    kept = KeptLines(lambda *_: None)
    for step in range(LINES):
        kept.log(logging.INFO, "[base] %s", f"epoch 3 step {step} loss {1 / (step + 1):.4f} lr 0.0003 tokens/s 18422")
    assert len(kept.packed()) < 20_000
