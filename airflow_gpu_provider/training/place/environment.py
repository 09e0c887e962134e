"""The size of what a container is given: Linux starts no program with an argument or a variable above 128 KiB.

Such a container fails on its node, with exit code 128 or 1, whatever the node; so it is refused before there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError

LARGEST = 2**17
"""Bytes of an argument, or of "NAME=value", with the NUL at its end: MAX_ARG_STRLEN, on pages of 4 KiB (execve(2))."""

ARGUMENTS, SOURCE = "__PYTHON_INPUT", "__PYTHON_SCRIPT"
"""The variables in which a decorated function's pickled arguments, and its source, go into the pod, in base64."""

_CALLED = {ARGUMENTS: "the function's arguments", SOURCE: "the function's source"}
_FIX = "Pass a path or a URL instead, and read the data from there: from a bucket, a volume or a ConfigMap."


def check_environment(containers: Iterable[Any]) -> None:
    """Raise PoolSpecError about an argument or a variable of these containers (V1Container) that is too large."""
    for container in containers:
        variables = {variable.name: variable.value or "" for variable in container.env or ()}
        words = [*(container.command or ()), *(container.args or ())]
        for what, size in _sizes(variables, words):
            _check(f"{what} of container {container.name}", size)


Arguments = Mapping[str, Any]
"""A task's arguments by name, as its author gave them."""


def check_given(task_id: str, given: Arguments) -> None:
    """Raise PoolSpecError about what is too large among a task's own `env_vars`, `cmds` and `arguments`."""
    variables = given.get("env_vars") or {}
    if not isinstance(variables, Mapping):
        variables = {getattr(each, "name", ""): getattr(each, "value", "") for each in variables}
    words = [word for name in ("cmds", "arguments") for word in given.get(name) or () if isinstance(word, str)]
    for what, size in _sizes(variables, words):
        _check(f"{what} of task {task_id}", size)


def check_pickled(size: int, task_id: str) -> None:
    """Raise PoolSpecError if a decorated function's arguments are too large; `size` is in bytes, pickled."""
    _check(f"{_CALLED[ARGUMENTS]} of task {task_id}", len(ARGUMENTS) + len("=\0") + -(-size // 3) * 4)


def _sizes(variables: Mapping[str, Any], words: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name, value in variables.items():
        if isinstance(value, str):
            yield _CALLED.get(name, f"the environment variable {name}"), len(f"{name}={value}\0".encode())
    for word in words:
        yield "an argument", len(f"{word}\0".encode())


def _check(what: str, size: int) -> None:
    if size > LARGEST:
        most = f"Linux takes in one argument or environment variable, {LARGEST // 1024} KiB"
        raise PoolSpecError(f"{what[0].upper()}{what[1:]}: {size / 1024:.0f} KiB are more than {most}.", _FIX)
