"""Fails the test in which a call to the sandbox, or its answer, was against the cloud's schema; counts what was judged.

Sandboxes in other processes count, too, as the folder of findings is in the environment that they inherit. Each worker
of xdist has a folder of its own, and tells the counts at its end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_sandbox.schemas.findings import FOLDER_VARIABLE, FindingsFolder

_OUTPUT = "schema_findings"
_DELIBERATE = "against_schema"


@contextmanager
def findings() -> Iterator[FindingsFolder]:
    """A folder of findings for what this process starts."""
    with tempfile.TemporaryDirectory(prefix="gpu-schemas-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        yield FindingsFolder(Path(folder))


def summary(judged: Mapping[str, int], violations: int) -> str:
    """How many calls were judged, in a line."""
    told = ", ".join(f"{count} {subject}s" for subject, count in sorted(judged.items()))
    return f"schemas: {told} judged; {violations} violations"


class SchemaFindings:
    """The plugin of one pytest process: a whole run, a worker of xdist, or the controller of some."""

    def __init__(self) -> None:
        self._found = FindingsFolder(Path(tempfile.mkdtemp(prefix="gpu-schemas-")))
        self._judged: Counter[str] = Counter()
        self._violations = 0
        self._late: list[str] = []
        """Those that came after the last test, as a shared sandbox ended."""
        os.environ[FOLDER_VARIABLE] = str(self._found.folder)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", f"{_DELIBERATE}: sends requests that a schema forbids")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        told = self._new(allowed="request" if item.get_closest_marker(_DELIBERATE) else "")
        if told:
            report.sections.append(("Against the clouds' schemas", "\n".join(told)))
            if report.passed:
                report.outcome = "failed"
                report.longrepr = "\n".join(("Against the clouds' schemas:", *told))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._late += self._new()
        self._judged.update(self._found.counts())
        shutil.rmtree(self._found.folder, ignore_errors=True)
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {"judged": dict(self._judged), "violations": self._violations, "late": self._late}
        if self._violations:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist ended; one that crashed has told nothing."""
        told = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if told:
            self._judged.update(told["judged"])
            self._violations += told["violations"]
            self._late += told["late"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._judged:
            return
        for each in self._late:
            terminalreporter.write_line(f"Against the clouds' schemas: {each}", red=True)
        told = summary(self._judged, self._violations)
        terminalreporter.write_line(told, red=bool(self._violations))

    def _new(self, allowed: str = "") -> list[str]:
        """Return what is new, but for what subjects ending in `allowed` did."""
        found = [each for each in self._found.new_violations() if not (allowed and each.subject.endswith(allowed))]
        self._violations += len(found)
        return list(map(str, found))
