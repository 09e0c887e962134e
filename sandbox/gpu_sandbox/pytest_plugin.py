"""pytest fixtures for tests of DAGs: `gpu_sandbox`, `gpu_sandbox_env`, `gpu_sandbox_factory`.

Nothing heavy is imported until a test requests a sandbox, since pytest loads this file in every run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpu_sandbox.sandbox import Sandbox
    from gpu_sandbox.sandbox_process import SandboxProcess


@pytest.fixture(scope="session")
def gpu_sandbox_settings() -> dict[str, Any]:
    """The arguments of `Sandbox` for `gpu_sandbox`: override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def gpu_sandbox(gpu_sandbox_settings: dict[str, Any]) -> Iterator[Sandbox]:
    """One running sandbox per pytest process. Tests share it, so each must clear the faults that it declares.

    With `clock="manual"` in its settings nothing in its cloud moves before `gpu_sandbox.advance(minutes=20)`.
    """
    from gpu_sandbox.sandbox import Sandbox

    with Sandbox(progress=print, **gpu_sandbox_settings) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def gpu_sandbox_factory() -> Iterator[Callable[..., SandboxProcess]]:
    """Starts another sandbox at each call, with the arguments of `SandboxProcess`; all end with the session."""
    from gpu_sandbox.sandbox_process import SandboxProcess

    with contextlib.ExitStack() as started:

        def start(**settings: Any) -> SandboxProcess:
            return started.enter_context(SandboxProcess(**settings))

        yield start


@pytest.fixture
def gpu_sandbox_env(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Points this test's boto3, Kubernetes and Airflow clients at the sandbox; returns the variables."""
    env = gpu_sandbox.env()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return env
