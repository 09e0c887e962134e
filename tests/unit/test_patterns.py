"""Each pattern that is applied to what a pod, the kubelet or a cloud writes takes linear time, whatever that is.

The patterns are found in the modules, so that a new one is measured, too: on long runs of characters, on long runs of
its own literals, and on beginnings that it matches, followed by long runs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise, product
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

import airflow_gpu_provider
from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_log import LONGEST_LINE
from airflow_gpu_provider.training.life.diagnosis import last_word
from airflow_gpu_provider.training.wait.log_end import last_error
from airflow_gpu_provider.training.wait.pull import why_not_pulled
from airflow_gpu_provider.training.wait.signs import advice_on

READERS = ("cluster", "training", "addons", "untrusted")
"""The packages whose patterns meet what pods, nodes and the cluster write."""

GLANCE = 4_000, 0.00025
LOOK = 32_000, 0.015
"""Lengths of shorter lines, and the seconds below which the longest takes less than MOST even in quadratic time."""
MOST = 1.0
"""Seconds of CPU for a line of LONGEST_LINE. Linear time is a tenth of that at most; quadratic is ten or a hundred."""


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(airflow_gpu_provider.__path__, "airflow_gpu_provider.")
    return [importlib.import_module(each.name) for each in found if each.name.split(".")[1] in READERS]


def patterns_in(value: Any, depth: int = 4) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif depth and isinstance(value, Mapping):
        yield from patterns_in([*value.keys(), *value.values()], depth)
    elif depth and isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from patterns_in(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        yield from patterns_in([getattr(value, field.name) for field in fields(value)], depth - 1)


def patterns() -> dict[str, re.Pattern[str]]:
    """Return the patterns of the modules, by where they are and what they begin with."""
    found: dict[str, re.Pattern[str]] = {}
    for module in modules():
        for name, value in vars(module).items():
            for pattern in patterns_in(value):
                if pattern not in found.values():
                    found[f"{module.__name__.removeprefix('airflow_gpu_provider.')}.{name}: {pattern.pattern}"] = (
                        pattern
                    )
    return found


PATTERNS = patterns()


# -- lines -------------------------------------------------------------------------------------------------------------

RUNS = (" ", "a", "1", "A", "[", "(", '"', "'", ".", "-", ":", "/", "|", "\\", "\x1b[", "\r", "%")
RUNS_OF_TWO = ("a ", "1 ", "1.", "a.", "a-", "a:", ": ", "a/", "1/", "1%|", "0:", "x=1 ", '" ', "( ", "[1")


def samples(parsed: Any) -> Iterator[list[str]]:
    """Yield ways to match a parsed pattern, as the pieces that its parts match."""
    ways: list[list[str]] = [[]]
    for code, argument in parsed:
        if code is op.BRANCH:
            ways = [[*way, *pieces] for way in ways[:2] for branch in argument[1] for pieces in _some(branch)]
        else:
            ways = [[*way, *pieces] for way in ways[:40] for pieces in _ways(code, argument)]
    yield from ways


def _some(parsed: Any) -> list[list[str]]:
    return [*samples(parsed)][:3]


def _ways(code: Any, argument: Any) -> list[list[str]]:
    if code is op.LITERAL:
        return [[chr(argument)]]
    if code in (op.NOT_LITERAL, op.ANY):
        return [["~"]]
    if code is op.IN:
        return [[_member(argument)]]
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return [["".join(pieces) * max(1, argument[0])] for pieces in _some(argument[2])]
    if code is op.SUBPATTERN:
        return _some(argument[3])
    if code is op.ATOMIC_GROUP:
        return _some(argument)
    return [[]]  # an assertion matches no characters


def _member(argument: Any) -> str:
    named = {op.CATEGORY_DIGIT: "1", op.CATEGORY_SPACE: " ", op.CATEGORY_WORD: "a"}
    code, value = argument[0]
    if code is op.NEGATE:
        return "~"
    return chr(value) if code is op.LITERAL else chr(value[0]) if code is op.RANGE else named.get(value, "~")


def literals(parsed: Any) -> list[str]:
    """Return the runs of literal characters of a parsed pattern, whatever they are in."""
    found, run = [], ""
    for code, argument in parsed:
        if code is op.LITERAL:
            run += chr(argument)
            continue
        found, run = [*found, run], ""
        within = argument if isinstance(argument, tuple | list) else ()
        branches = argument[1] if code is op.BRANCH else within
        for each in branches:
            if isinstance(each, _parser.SubPattern):
                found += literals(each)
    return [each for each in (*found, run) if each]


def fragments(pattern: re.Pattern[str]) -> set[str]:
    """Return what to repeat for one pattern."""
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    own = list(dict.fromkeys(literals(parsed)))
    begun = {"".join(way[:end]) for way in samples(parsed) for end in _cuts(way)}
    return {*own, *(f"{each} " for each in own), *(f"{one} {other} " for one, other in pairwise(own)), *begun} - {""}


def _cuts(way: list[str]) -> list[int]:
    """Return where to cut the pieces: at the end, and where something other than a letter follows, 12 at most."""
    return [end for end in range(1, len(way) + 1) if end == len(way) or not way[end].isalnum()][-12:]


def lines(pattern: re.Pattern[str]) -> Iterator[Callable[[int], str]]:
    """Yield makers of lines of a length."""
    own = sorted(fragments(pattern))
    for fragment in (*RUNS, *RUNS_OF_TWO, *own):
        yield lambda size, fragment=fragment: (fragment * (size // len(fragment) + 1))[:size] + "~"  # type: ignore[misc]
    for begun, run in product(own[:40], RUNS[:6]):
        yield lambda size, begun=begun, run=run: begun + run * (size // len(run)) + "~"  # type: ignore[misc]


# -- time --------------------------------------------------------------------------------------------------------------


class TooSlow(Exception):
    """The CPU time is used up."""


def cpu(work: Callable[[], object], most: float = 30.0) -> float:
    """Return the seconds of CPU that the work takes; raises TooSlow after `most`."""

    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, most)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - begun


def slow_on(pattern: re.Pattern[str]) -> str | None:
    """Return the beginning of a line on which the pattern takes more than linear time; None if none is found."""
    for make in lines(pattern):
        if not _may_be_slow(pattern, make(GLANCE[0]), GLANCE[1]):
            continue
        shorter, line = make(LOOK[0]), make(LONGEST_LINE)
        try:
            cpu(lambda: pattern.search(shorter), MOST / 4)  # noqa: B023
            if _may_be_slow(pattern, shorter, LOOK[1]):
                cpu(lambda: pattern.search(line), MOST)  # noqa: B023
        except TooSlow:
            return line[:80]
    return None


def _may_be_slow(pattern: re.Pattern[str], line: str, least: float) -> bool:
    """Return True if three searches each take as long, by a clock that runs on for others' work, too."""
    for _ in range(3):
        begun = time.perf_counter()
        pattern.search(line)
        if time.perf_counter() - begun < least:
            return False
    return True


@pytest.mark.parametrize("name", PATTERNS)
def test_it_takes_linear_time(name: str) -> None:
    assert slow_on(PATTERNS[name]) is None


@pytest.mark.parametrize(
    "pattern",
    [r"\d+x", r"a.*b", r"\w+ \w*/", r"failed to pull \S+ at .*not found", r"(ab|cd\w*)+!", r"^x\d+\d+$", r"\s*DEBUG"],
)
def test_one_of_more_than_linear_time_is_found(pattern: str) -> None:
    assert slow_on(re.compile(pattern)) is not None


def test_the_patterns_are_found() -> None:
    assert len(PATTERNS) > 150
    for part in (
        "wait.log_end._PACE",
        "wait.signs._ROWS",
        "wait.pull._ROWS",
        "wait.start_advice._ROWS",
        "events._GREW",
    ):
        assert any(part in name for name in PATTERNS), part


def test_no_pattern_hides_in_a_function() -> None:
    """One that is no attribute of its module is not measured."""
    hidden = [
        f"{module.__name__}: {ast.unparse(node)}"
        for module in modules()
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr not in ("compile", "escape")
        and (node.args and isinstance(node.args[0], ast.Constant))
    ]
    assert hidden == []


# -- what the patterns are for -----------------------------------------------------------------------------------------

MEGABYTE = 2**20
HOSTILE = (
    "step 1/2 " + "1" * 980,
    "1" * 1000,
    " " * 199 + "\r",
    "loss" + " " * 900,
    "(train pid=" + "1" * 900,
    "RuntimeError: CUDA error: NVRM: Xid (",
    "NVRM: Xid (a): " + "1" * 5000 + " CUDA error ",
    "GPU recovery action changed to to to x ",
    "fail" * 200,
    'pulling image "',
    "\x1b[" * 400,
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("number", [1, 200], ids=["in one line", "in 200 lines"])
@pytest.mark.parametrize("read", [last_error, last_word])
def test_a_megabyte_of_a_log_takes_no_second(read: Callable[[list[str]], object], number: int, text: str) -> None:
    size = MEGABYTE // number
    log = [f"{(text * (size // len(text) + 1))[:size]} {line}" for line in range(number)]
    assert cpu(lambda: read(log), 1.0) < 1.0


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("read", [advice_on, why_not_pulled])
def test_a_megabyte_of_a_message_takes_no_second(read: Callable[[str], object], text: str) -> None:
    assert cpu(lambda: read(text * (MEGABYTE // len(text))), 1.0) < 1.0


@pytest.mark.parametrize(
    "reason", ["Pulled", "Pulling", "TriggeredScaleUp", "NotTriggerScaleUp", "Disrupted", "Failed"]
)
@pytest.mark.parametrize("text", [*HOSTILE, "{", "{a 1->", 'pulled image "a" in 1 (', "terminationTime "])
def test_a_megabyte_of_an_event_takes_no_second(reason: str, text: str) -> None:
    raw = {
        "metadata": {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "type": "Warning",
        "reason": reason,
        "message": text * (MEGABYTE // len(text)),
        "source": {"component": "karpenter"},
    }
    assert cpu(lambda: PodEvent.parse(raw).in_words, 1.0) < 1.0
