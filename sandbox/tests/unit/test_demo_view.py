"""What the demonstration shows, on a terminal and elsewhere, and which faults it takes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gpu_sandbox.demo_journal import Entry, Journal
from gpu_sandbox.demo_watchers import task_of
from gpu_sandbox.live_view import Screen, plain_line, shown_on


def shown(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    journal = Journal()
    with shown_on(console, journal, title="a night"):
        journal.write("node", "ip-10-64-0-4", "Ready, 1 GPU", where="us-west-2a g6.xlarge")
        journal.write("task", "train", "running")
        journal.write("log", "train-x", "epoch 01/30 loss 2.0000 accuracy 0.50")
        journal.write("call", "autoscaling", "SetDesiredCapacity")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_nodes_tasks_log_and_calls(terminal: bool) -> None:
    output = shown(terminal=terminal)
    for expected in ("ip-10-64-0-4", "Ready, 1 GPU", "train", "running", "epoch 01/30", "SetDesiredCapacity"):
        assert expected in output


def test_a_line_that_a_training_wrote_is_no_markup_and_no_escape_sequence() -> None:
    console, journal = Console(file=io.StringIO(), width=120), Journal()
    with shown_on(console, journal, title="a night"):
        journal.write("log", "train-x", "[/x] [red]1/5[/red] \x1b]8;;https://elsewhere.example\x07 \u202eend")
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[/x] [red]1/5[/red] " in output
    assert output.rstrip("\n").isprintable()
    screen = Screen("a night")
    screen.see(Entry(at=1, subject="task", name="train[/x]", what="running"))
    console.print(screen.render())


def test_without_a_terminal_each_entry_is_one_plain_line() -> None:
    assert len(shown(terminal=False).splitlines()) == 4
    entry = Entry(at=112.5, subject="node", name="n1", what="gone", where="us-west-2a")
    assert plain_line(entry, 100) == "  12.5 s  node    n1: gone  (us-west-2a)"


def test_the_screen_shows_the_latest_state_only() -> None:
    screen = Screen("a night")
    for what in ("joined", "Ready", "gone"):
        screen.see(Entry(at=1, subject="node", name="n1", what=what))
    console = Console(file=io.StringIO(), width=100)
    console.print(screen.render())
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "gone" in output
    assert "joined" not in output


def test_the_task_of_a_log_file() -> None:
    path = Path("logs/dag_id=d/run_id=r/task_id=train-gpu.ensure/attempt=1.log.trigger.3.log")
    assert task_of(path) == "train-gpu.ensure"
