"""How the cover goes, for a log that nobody can look behind: a line for each cell as it ends, and the table of all."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.airflow.chaos.matrix import Outcome
from tests.airflow.chaos.report import by_cell, write_json
from tests.airflow.conftest import REPOSITORY

_TOLD = pytest.StashKey[dict[str, Outcome]]()


@pytest.fixture(scope="session")
def tell(request: pytest.FixtureRequest) -> Callable[[Outcome], None]:
    """Takes down what became of a cell: in the log now, whatever pytest captures, and in build/chaos.json."""
    told: dict[str, Outcome] = request.config.stash.setdefault(_TOLD, {})
    capture = request.config.pluginmanager.getplugin("capturemanager")
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    assert capture is not None
    assert reporter is not None
    began = time.monotonic()

    def tell(outcome: Outcome) -> None:
        told[outcome.cell] = outcome
        write_json(told.values(), REPOSITORY / "build" / "chaos.json", "cover")
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(
                f"{len(told)}. after {time.monotonic() - began:.0f} s, {outcome.seconds:.0f} s of its own: {outcome}"
            )

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    told = config.stash.get(_TOLD, {})
    if told:
        terminalreporter.section("chaos")
        terminalreporter.write_line(by_cell(told.values()))
