"""What the schemas found: how many calls were judged, and each violation.

With GPU_SANDBOX_SCHEMA_FINDINGS, a folder, all processes that inherit the variable add to the same files there. One
file per kind of call has a byte for each that was judged, so that an append counts, and no process's end loses any.
API servers keep their audit logs there, which are judged as they are read.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_sandbox.schemas.kubernetes import (
    AUDIT_LOG,
    FOLDER_VARIABLE,
    WRITE,
    is_judged,
    name_of,
    wrong_in_write,
)

_VIOLATIONS = "violations.jsonl"
_COUNTED = ".count"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """`subject` is what was judged (`Google request`), `call` the API's name of it, `wrong` a sentence each."""

    subject: str
    call: str
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subject} of {self.call}: {'; '.join(self.wrong)}"


def note(subject: str, call: str, wrong: Iterable[str]) -> None:
    """Count one call as judged, and keep what is wrong with it."""
    violation = Violation(subject=subject, call=call, wrong=tuple(wrong))
    if violation.wrong:
        _log.error("against the cloud's schema: %s", violation)
    if folder := os.environ.get(FOLDER_VARIABLE):
        _append(Path(folder, f"{subject}{_COUNTED}"), b".")
        if violation.wrong:
            _append(Path(folder, _VIOLATIONS), f"{json.dumps(asdict(violation))}\n".encode())


def judge(subject: str, call: str, find_wrong: Callable[[], Iterable[str]]) -> None:
    """`note` what `find_wrong` returns; a judge that fails is a violation, too, and harms no call."""
    try:
        wrong = list(find_wrong())
    except Exception as error:  # noqa: BLE001 - the call that is judged goes on
        _log.exception("the judge of %s failed", call)
        wrong = [f"the judge failed: {error!r}"]
    note(subject, call, wrong)


def _append(file: Path, content: bytes) -> None:
    # One write of an O_APPEND file: those of several processes do not mix.
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, content)
    finally:
        os.close(handle)


class FindingsFolder:
    """Reads what processes wrote into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}
        self._writes: Counter[str] = Counter()

    def new_violations(self) -> list[Violation]:
        """Return those since the last call."""
        return [*self._of_processes(), *self._of_api_servers()]

    def counts(self) -> Counter[str]:
        """Return how many calls were judged, by subject; of Kubernetes' those that `new_violations` has read."""
        counted = Counter({file.stem: file.stat().st_size for file in self.folder.glob(f"*{_COUNTED}")})
        return counted + self._writes

    def _of_processes(self) -> Iterator[Violation]:
        for told in self._new_lines(self.folder / _VIOLATIONS):
            yield Violation(subject=told["subject"], call=told["call"], wrong=tuple(told["wrong"]))

    def _of_api_servers(self) -> Iterator[Violation]:
        for file in sorted(self.folder.glob(f"*{AUDIT_LOG}")):
            for event in self._new_lines(file):
                if not is_judged(event):
                    continue
                self._writes[WRITE] += 1
                wrong = tuple(wrong_in_write(event))
                if wrong:
                    yield Violation(subject=WRITE, call=name_of(event), wrong=wrong)

    def _new_lines(self, file: Path) -> Iterator[Any]:
        """Yield the JSON of whole lines; what comes after the last of them is still being written."""
        if not file.exists():
            return
        with file.open("rb") as lines:
            lines.seek(self._read.get(file, 0))
            content = lines.read().rpartition(b"\n")
        self._read[file] = self._read.get(file, 0) + len(content[0]) + len(content[1])
        yield from map(json.loads, content[0].splitlines())
