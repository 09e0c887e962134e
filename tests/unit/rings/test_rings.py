"""A tier's second try, and what a ring tells of its tiers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rings import outcomes, report, running
from tests.rings.__main__ import run_group
from tests.rings.running import TierResult, run_tier
from tests.rings.tiers import RINGS, TIERS, Tier

REPOSITORY = Path(__file__).parents[3]
PASSES_LATER = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", ["a b[c]", "d::e"])
def test_flaky(name):
    flag = Path({folder!r}) / name.replace(":", "")
    was_there = flag.exists()
    flag.touch()
    assert was_there, "it was the first time"

def test_good():
    pass
"""
FAILS = "def test_bad():\n    assert 1 == 2\n"
DIES_FIRST = """
import os
from pathlib import Path

def test_dies():
    flag = Path({folder!r}) / "died"
    if not flag.exists():
        flag.touch()
        os._exit(1)

def test_after_it():
    pass
"""


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tier]:
    """A tier of one file of tests, run by this interpreter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second to import
    monkeypatch.setattr(running, "BIN", str(Path(sys.executable).parent))
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)  # COVERAGE=1 is for the provider's tests
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly: x\naddopts = -p no:cacheprovider\n")

    def tier(text: str, *arguments: str) -> Tier:
        file = tmp_path / "test_it.py"
        file.write_text(text.format(folder=str(tmp_path)) if "{folder" in text else text)
        return Tier(name="it", title="it", tests=(file.name, *arguments))

    return tier


def test_what_passes_by_itself_is_flaky_and_named_with_its_first_error(tier: Callable[..., Tier]) -> None:
    result = run_tier(tier(PASSES_LATER, "-p", "xdist", "-n", "2"), nightly=False)
    assert result.is_well
    assert result.failed == {}
    assert set(result.flaky) == {"test_it.py::test_flaky[a b[c]]", "test_it.py::test_flaky[d::e]"}
    assert "it was the first time" in result.flaky["test_it.py::test_flaky[d::e]"]
    assert result.tests == 3
    lines = list(report.last_lines([result]))
    assert [line.partition(":")[0] for line in lines[:-1]] == ["FLAKY test_it.py", "FLAKY test_it.py"]
    assert lines[-1] == "3 passed, 0 failed, 0 skipped"


def test_what_fails_twice_fails(tier: Callable[..., Tier]) -> None:
    result = run_tier(tier(FAILS), nightly=False)
    assert not result.is_well
    assert result.flaky == {}
    assert result.failed == {"test_it.py::test_bad": "assert 1 == 2"}
    assert list(report.last_lines([result])) == [
        "FAILED test_it.py::test_bad: assert 1 == 2",
        "0 passed, 1 failed, 0 skipped",
    ]


def test_all_is_run_again_where_pytest_itself_died(tier: Callable[..., Tier]) -> None:
    result = run_tier(tier(DIES_FIRST), nightly=False)
    assert result.is_well
    assert list(result.flaky) == ["test_it.py::test_dies"]
    assert result.tests == 2


def test_pytest_that_dies_twice_fails_the_tier(tier: Callable[..., Tier]) -> None:
    result = run_tier(tier("import os\ndef test_dies():\n    os._exit(1)\n"), nightly=False)
    assert not result.is_well
    assert result.error == "pytest ended twice before all tests had run, with 1"


def test_a_file_that_cannot_be_imported_fails(tier: Callable[..., Tier]) -> None:
    result = run_tier(tier("import nothing_of_this_name\n"), nightly=False)
    assert not result.is_well
    assert list(result.failed) == ["test_it.py"]


def test_nightly_tests_are_of_nightly_only(tier: Callable[..., Tier]) -> None:
    marked = tier("import pytest\n@pytest.mark.nightly\ndef test_long(): pass\ndef test_short(): pass\n")
    assert run_tier(marked, nightly=False).tests == 1
    assert run_tier(marked, nightly=True).tests == 2


def test_the_longest_silence_is_told_with_what_was_under_way(tmp_path: Path) -> None:
    lines = [
        ("one", "begun", 100),
        ("two", "begun", 101),
        ("one", "ended", 160),
        ("three", "begun", 161),
        ("three", "ended", 162),
        ("two", "ended", 3702),
    ]
    file = tmp_path / "outcomes.jsonl"
    file.write_text("".join(json.dumps({"id": test, "what": what, "at": at}) + "\n" for test, what, at in lines))
    found = outcomes.read(file)
    assert (found.silence, found.silent) == (3540, "two")


def test_a_tier_that_stalls_says_so(tier: Callable[..., Tier], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LONGEST_SILENCE", -1)
    result = run_tier(tier("def test_good(): pass\n"), nightly=False)
    assert result.is_well
    stalled, _ = report.last_lines([result])
    assert stalled.startswith("STALLED it: no test began or ended for 0 s, in ")


def test_no_test_at_all_fails(tier: Callable[..., Tier]) -> None:
    assert not run_tier(tier(""), nightly=False).is_well


def test_a_command_that_fails_hides_neither_the_others_nor_itself() -> None:
    commands = ((sys.executable, "-c", "raise SystemExit(3)"), (sys.executable, "-c", "pass"))
    result = run_tier(Tier(name="it", title="it", commands=commands), nightly=False)
    assert result.error == f"`{sys.executable} -c raise SystemExit(3)` ended with 3"


def test_a_tier_whose_program_is_missing_is_left_out_in_words() -> None:
    result = run_tier(
        Tier(name="it", title="it", commands=((sys.executable,),), needs="no-such-program"), nightly=False
    )
    assert result.is_well
    assert result.left_out == "no-such-program is missing on this machine"
    assert "no-such-program is missing" in report.table([result])


def test_tiers_side_by_side_all_run_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.rings.__main__.FOLDER", tmp_path)
    tiers = [
        Tier(name=name, title=name, commands=((sys.executable, "-c", f"print('said by {name}'); exit({code})"),))
        for name, code in (("one", 1), ("two", 0))
    ]
    one, two = run_group(tiers, nightly=False)
    assert (one.is_well, two.is_well) == (False, True)
    printed = capfd.readouterr().out
    assert "said by one" in printed
    assert "said by two" in printed


def test_a_ring_of_hours_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(("git", *who, *arguments), cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / ".gitignore").write_text("build/\n")
    git("add", ".")
    git("commit", "--message", "one")
    monkeypatch.chdir(tmp_path)
    results = [TierResult(name="unit", tests=3), TierResult(name="sandbox", failed={"a": "b"})]
    report.write("nightly", results)
    assert report.read_green("nightly") == {"unit": results[0]}
    (tmp_path / "changed").touch()
    assert report.read_green("nightly") == {}
    git("add", ".")
    git("commit", "--message", "two")
    assert report.read_green("nightly") == {}


def test_flakes_are_kept_from_run_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "commit", lambda: "abc")
    (tmp_path / "build").mkdir()
    for test in ("one", "two"):
        report.add_flakes("test", [TierResult(name="unit", flaky={test: "why"})])
    known = json.loads((tmp_path / "build" / "flaky.json").read_text())
    assert [(each["test"], each["error"], each["commit"]) for each in known] == [
        ("one", "why", "abc"),
        ("two", "why", "abc"),
    ]


def test_each_ring_holds_what_the_one_within_it_holds() -> None:
    names = {ring: {tier.name for group in groups for tier in group} for ring, groups in RINGS.items()}
    assert names["test"].isdisjoint(names["landing"])
    assert names["test"] | names["landing"] < names["nightly"] == set(TIERS)
