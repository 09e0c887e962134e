"""Which calls each permission of docs/iam is for, as tests saw them: docs/iam/calls.md, made by `make iam-calls`.

Each permission has one test as its witness, which fails when it no longer needs it; a test that needs what the record
does not have fails too. So the record is true whichever tests run, and in whatever processes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_sandbox.aws import PolicyUse
from gpu_sandbox.google import PermissionUse

RECORD = Path(__file__).parents[2] / "docs" / "iam" / "calls.md"
WRITE_TO = "IAM_CALLS"
"""The environment variable with the folder for what tests see, when the record is to be made anew."""

_HEAD = """\
# The calls behind each permission

Made by `make iam-calls` from what tests called in the sandbox, each with the role and nothing more; do not edit.
The test in the last column fails when it no longer needs the permission.
"""
_ROW = re.compile(
    r"\| (?:(?P<statement>\w+) \| )?`(?P<permission>[\w.:]+)` \| (?P<calls>[^|]+) \| `(?P<test>[^`]+)` \|"
)


class Line(NamedTuple):
    """A permission of a policy's statement, or of a Google role, which has none."""

    statement: str
    permission: str


@dataclass(frozen=True)
class Row:
    calls: frozenset[str]
    test: str


def hold(file: str, test: str, uses: Iterable[PolicyUse | PermissionUse]) -> None:
    """Fail if a test used what is not in the record, or did not use what it is the witness of.

    Statements of other files than this one are left out.
    """
    lines = granted(file)
    used = {line: calls for line, calls in _by_line(uses).items() if line in lines}
    if folder := os.environ.get(WRITE_TO):
        _note(Path(folder), file, test, used)
        return
    rows = read().get(file, {})
    unknown = {line: calls for line, calls in used.items() if line not in rows or not calls <= rows[line].calls}
    unused = [line for line, row in rows.items() if row.test == test and line not in used]
    assert not unknown, f"{file}: not in {RECORD.name}, which `make iam-calls` makes: {unknown}"
    assert not unused, f"{file}: {test} is the witness of what it did not use: {unused}"


def granted(file: str) -> set[Line]:
    """Return what a policy or a role of docs/iam allows."""
    document = json.loads((RECORD.parent / file).read_text())
    of_role = {Line("", permission) for permission in document.get("includedPermissions", ())}
    statements = document.get("Statement", ())
    return of_role | {Line(each["Sid"], action) for each in statements for action in each["Action"]}


def read() -> dict[str, dict[Line, Row]]:
    """Return the record, by file."""
    found: defaultdict[str, dict[Line, Row]] = defaultdict(dict)
    file = ""
    for text in RECORD.read_text().splitlines() if RECORD.exists() else ():
        if text.startswith("## "):
            file = text.removeprefix("## ")
        elif match := _ROW.fullmatch(text):
            calls = frozenset(re.findall(r"`([^`]+)`", match["calls"]))
            found[file][Line(match["statement"] or "", match["permission"])] = Row(calls, match["test"])
    return dict(found)


def _by_line(uses: Iterable[PolicyUse | PermissionUse]) -> dict[Line, frozenset[str]]:
    lines: defaultdict[Line, set[str]] = defaultdict(set)
    for use in uses:
        line = Line(use.statement, use.action) if isinstance(use, PolicyUse) else Line("", use.permission)
        lines[line].add(use.call)
    return {line: frozenset(calls) for line, calls in lines.items()}


def _note(folder: Path, file: str, test: str, used: Mapping[Line, frozenset[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seen = {"file": file, "test": test, "used": [[*line, sorted(calls)] for line, calls in used.items()]}
    name = re.sub(r"\W+", "-", f"{file}-{test}")
    (folder / f"{name}.json").write_text(json.dumps(seen))


def write(folder: Path) -> None:
    """Make the record from what was noted, and from itself where a witness has not run."""
    notes = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    ran = {note["test"] for note in notes}
    rows = {file: {line: row for line, row in of.items() if row.test not in ran} for file, of in read().items()}
    for note in sorted(notes, key=lambda one: (-len(one["used"]), one["test"])):
        of_file = rows.setdefault(note["file"], {})
        for statement, permission, calls in note["used"]:
            line = Line(statement, permission)
            before = of_file.get(line, Row(frozenset(), note["test"]))
            of_file[line] = Row(before.calls | set(calls), before.test)
    RECORD.write_text("\n".join([_HEAD, *(text for file in sorted(rows) for text in _table(file, rows[file]))]))


def _table(file: str, rows: Mapping[Line, Row]) -> Iterator[str]:
    of_statements = any(line.statement for line in rows)
    yield f"## {file}\n"
    yield (
        "| statement | permission | calls | test |\n|---|---|---|---|"
        if of_statements
        else ("| permission | calls | test |\n|---|---|---|")
    )
    for line, row in sorted(rows.items()):
        calls = ", ".join(f"`{call}`" for call in sorted(row.calls))
        first = f"{line.statement} | " if of_statements else ""
        yield f"| {first}`{line.permission}` | {calls} | `{row.test}` |"
    yield ""


if __name__ == "__main__":
    write(Path(sys.argv[1]))
