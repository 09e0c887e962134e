"""The sandbox names no module of the provider: what an Airflow here imports for its tasks, its caller passes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu_sandbox
from gpu_sandbox import airflow_component

PROVIDER = "airflow_gpu_provider"
SOURCES = sorted(Path(gpu_sandbox.__file__).parent.rglob("*.py"))
A_MODULE = re.compile(rf"{PROVIDER}\.\w|import {PROVIDER}\b")


def test_no_module_of_the_provider_is_named() -> None:
    assert [path.name for path in SOURCES if A_MODULE.search(path.read_text())] == []


def test_a_components_children_inherit_what_its_caller_names(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(airflow_component.runpy, "run_module", lambda name, **_: ran.append((name, sys.argv)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    airflow_component.main("this:d,json", ["scheduler", "--skip-serve-logs"])
    assert "this" in sys.modules
    assert ran == [("airflow", ["airflow", "scheduler", "--skip-serve-logs"])]
