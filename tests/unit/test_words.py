"""The words that this project left behind, in code and in prose: each thing has one name, which Kubernetes, Airflow or
the clouds know.

CONTRIBUTING.md lists the names; here are the old ones.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "airflow_gpu_provider"

NAMES = {
    "Ask": "DemandChange",
    "Following": "watch",
    "Keeper": "PoolLoop",
    "MEETS_ALL": "_SHARED_FAILURES",
    "Patience": "Tolerance",
    "PodTask": "Run, PodSettings",
    "PoolNews": "PoolStatus",
    "Seat": "GangNodes",
    "Seats": "GangAssignment",
    "Supply": "MachineStatus",
    "Unshown": "DirectReads",
    "Watched": "WaitOutcome",
    "Way": "RunKind",
    "bears": "allows",
    "borne_for": "tolerated_for",
    "counted": "plural",
    "follow_here": "wait_in_worker",
    "go_on": "resume",
    "go_on_without_event": "resume_without_event",
    "goes_on": "is_resumed",
    "hard_to_get": "scarce_capacity",
    "is_borne": "is_tolerated",
    "is_told": "is_reported",
    "keeper": "pool_loop",
    "let_go": "release_uncollected",
    "news": "update",
    "pool_news": "pool_updates",
    "release_without_sensor": "release_now",
    "said": "what it is: message, reason, log_lines",
    "say": "report",
    "settle": "wait_out_airflow_72716",
    "take_up": "adopt",
    "told": "what it is: outcome, at, matching",
    "told_to": "reported_to",
    "told_to_stop": "stop_asked_at",
    "unhurried": "what it is",
    "untold": "what it is: untagged",
    "untried": "what it is",
}
SETTLE = re.compile(r"_?SETTLE[A-Z_]*")
"""Four constants of this form meant four things: CORDON_TO_RECHECK, PROPOSALS_WRITTEN_IN, ENDS_REPORTED_WITHIN."""

PHRASES = {
    r"\banew\b": "again; recreated",
    r"\bwhoever\b": "whatever; any",
    r"\b(is|are|be|was|were|been) had\b": "is available; could be created; could be read",
    r"\bnobody knows\b": "is unknown",
    r"\bdemand is given up": "Withdrawing this run's demand",
    r"gave \S+ of the \S+ nodes wanted": "has %d of %d requested nodes",
    r"has not told which nodes": "has not listed the pool's nodes yet",
    r"The next try goes on": "The next retry continues",
    r"The same again goes on": "Run the command again to continue",
    r"EKS updates no such group": "EKS cannot update it",
    r"IAM does not say": "could not be checked with IAM",
    r"list could be had": "could not be listed",
    r"GPU nodes, (whatever exists now|gone)\b": "Brings a DAG run's GPU nodes up. / Releases them",
    r"was told to stop": "received SIGTERM",
    r"is four tasks": "is six tasks",
}


def python(path: Path) -> Iterator[str]:
    """Yield each name that code gives or uses, those within f-strings too."""
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield from name.split(".")


def prose(path: Path) -> str:
    """Return a file's text as one line: a phrase may go over the end of a line, or of a string."""
    text = re.sub(r"[\"'] *\n\s*[frb]*[\"']", "", path.read_text())
    return re.sub(r"\s*\n\s*(#\s*)?", " ", text)


def texts() -> list[Path]:
    patterns = ("airflow_gpu_provider/**/*.py", "docs/**/*.md", "ui/src/*.ts*", "example_dags/**/*.py")
    return [*ROOT.glob("*.md"), ROOT / "Makefile", *(path for each in patterns for path in ROOT.glob(each))]


def found() -> dict[str, dict[str, str]]:
    """Return each file's old words, private names' too, and what to write instead."""
    found: dict[str, dict[str, str]] = {}
    for path in CODE.rglob("*.py"):
        names = {each.lstrip("_") for each in (*python(path), path.stem)}
        found[str(path)] = {
            each: NAMES.get(each, "see SETTLE") for each in names if each in NAMES or SETTLE.fullmatch(each)
        }
    for path in texts():
        if path.name != "CHANGELOG.md":
            text = prose(path)
            old = {each: better for each, better in PHRASES.items() if re.search(each, text, re.IGNORECASE)}
            found[str(path)] = found.get(str(path), {}) | old
    return {path: words for path, words in found.items() if words}


def test_no_old_word_comes_back() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("text", "name"), [("told = 1", "told"), ('f"{each.said}"', "said"), ("def f(news): ...", "news")]
)
def test_a_name_is_found_where_code_has_it(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert name in python(path)


def test_a_phrase_is_found_over_the_end_of_a_string(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('x = (\n    "The group is made "\n    f"anew."\n)\n# is made\n# anew\n')
    assert prose(path).count("made anew") == 2
