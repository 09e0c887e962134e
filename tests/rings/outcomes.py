"""A pytest plugin that writes what becomes of each test to a file, as it happens, and reads it back.

`pytest -p tests.rings.outcomes --outcomes FILE`. A test in which a process died is there too: begun, and never ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

_NEVER_ENDED = "the pytest process ended during this test"


@dataclass(kw_only=True)
class Outcomes:
    """The tests of one pytest process and its workers, by node id."""

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """With the first line of each one's first error."""
    is_whole: bool = False
    """Whether pytest came to its end: otherwise some tests were never begun."""
    silence: float = 0.0
    """The longest time, in seconds, in which no test began or ended."""
    silent: str = ""
    """The tests that were under way in it."""

    @property
    def count(self) -> int:
        return len(self.passed | self.skipped | self.failed.keys())


def read(file: Path) -> Outcomes:
    """Raises nothing for what was cut off in the middle of a line."""
    found, begun = Outcomes(), {}
    before = None
    for line in _lines(file):
        if before is not None and line["at"] - before > found.silence:
            found.silence = line["at"] - before
            found.silent = ", ".join(begun)
        before = line["at"]
        if line["what"] == "finished":
            found.is_whole = True
            continue
        test, what = line["id"], line["what"]
        if what == "begun":
            begun[test] = _NEVER_ENDED
        elif what == "ended":
            begun.pop(test, None)
        elif what == "failed":
            found.failed.setdefault(test, line["error"])
        elif what == "skipped":
            found.skipped.add(test)
        else:
            found.passed.add(test)
    found.failed = begun | found.failed
    found.passed -= found.failed.keys()
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write what becomes of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("outcomes")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(file)))


class _Writer:
    """In the process that all reports come to: the only one, or the controller of xdist's workers."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = file.open("w")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "begun")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, "ended")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", error=_first_error(report))
        elif report.skipped:
            self._write(report.nodeid, "skipped")
        elif report.when == "call":
            self._write(report.nodeid, "passed", seconds=round(report.duration, 2))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", error=_first_error(report))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._write("", "finished")
        self._file.close()

    def _write(self, test: str, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"id": test, "what": what, "at": round(time.time(), 2), **more}) + "\n")
        # What a test's own end leaves unwritten is lost only with a process that dies between two tests. Each write
        # to a disk that is behind with others takes up to a fifth of a second, and 6,000 tests have three lines each.
        if what == "begun":
            self._file.flush()


def _first_error(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash else report.longrepr or "no reason given")
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
