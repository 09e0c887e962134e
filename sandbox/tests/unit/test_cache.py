"""Folders of programs and tokens are the user's alone, and a program in them is the one that was compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_sandbox import cache
from gpu_sandbox.airflow_home import database_template
from gpu_sandbox.errors import FolderNotPrivate
from gpu_sandbox.supervisor import state_folder

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "airflow-gpu-provider"


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_it_is_made_for_its_user_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert cache.cache_folder() == folder
    finally:
        os.umask(before)
    assert mode(folder) == "700"


def test_one_that_others_could_only_read_gets_its_mode_back(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "kept").touch()
    cache.cache_folder()
    assert mode(folder) == "700"
    assert (folder / "kept").exists()


@pytest.mark.parametrize("writable", [0o770, 0o777, 0o1777, 0o702])
def test_one_that_others_could_write_to_is_refused(writable: int, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(writable)
    with pytest.raises(
        FolderNotPrivate, match=rf"{folder}.* has mode 0{writable & 0o777:o}: .* Remove it.*XDG_CACHE_HOME"
    ):
        cache.cache_folder()
    assert folder.stat().st_mode & 0o1777 == writable


def test_one_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.cache_folder()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(FolderNotPrivate, match=rf"{folder}.* belongs to another user \(id {owner}\)"):
        cache.cache_folder()


@AS_ROOT
def test_root_takes_that_of_the_user_who_called_sudo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI runs so, with the HOME of the runner's user."""
    cache.cache_folder()
    os.chown(folder, 1001, -1)
    monkeypatch.setenv("SUDO_UID", "1001")
    assert cache.cache_folder() == folder
    for caller in ("1002", ""):
        monkeypatch.setenv("SUDO_UID", caller)
        with pytest.raises(FolderNotPrivate):
            cache.cache_folder()
    monkeypatch.setenv("SUDO_UID", "1001")
    monkeypatch.setattr(os, "geteuid", lambda: 1002)
    with pytest.raises(FolderNotPrivate):  # anybody can set a variable
        cache.cache_folder()


def test_a_link_is_followed_if_both_ends_are_the_users(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    assert cache.cache_folder() == folder
    elsewhere.chmod(0o777)
    with pytest.raises(FolderNotPrivate, match="has mode 0777"):
        cache.cache_folder()
    elsewhere.rmdir()
    with pytest.raises(FolderNotPrivate, match="is no folder"):
        cache.cache_folder()


@AS_ROOT
@pytest.mark.parametrize("end", ["link", "target"])
def test_a_link_from_or_to_another_users_is_refused(end: str, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    os.chown(folder if end == "link" else elsewhere, 1001, -1, follow_symlinks=False)
    with pytest.raises(FolderNotPrivate, match=r"belongs to another user \(id 1001\)"):
        cache.cache_folder()


@pytest.mark.parametrize("user", [database_template, state_folder])
def test_all_that_keep_something_there_look_first(user: Callable[[], Path], folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(FolderNotPrivate):
        user()


def test_the_folder_of_tokens_is_looked_at_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    state_folder().chmod(0o777)
    with pytest.raises(FolderNotPrivate, match="XDG_RUNTIME_DIR"):
        state_folder()


def test_a_program_is_intact_until_a_byte_of_it_changes() -> None:
    program = cache.cache_folder() / "program-0123-go1.26"
    program.write_bytes(b"\x7fELF 1")
    assert not cache.is_intact(program), "nobody has sealed it"
    cache.seal(program)
    assert cache.is_intact(program)
    subprocess.run(["sha256sum", "--check", "--strict", f"{program.name}.sum"], cwd=program.parent, check=True)
    program.write_bytes(b"\x7fELF 2")
    assert not cache.is_intact(program)
    cache.seal(program)
    (program.with_name(f"{program.name}.sum")).write_bytes(b"\xff")
    assert not cache.is_intact(program)


def test_a_process_reads_a_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = cache.cache_folder() / "program-4567-go1.26"
    program.write_bytes(b"1")
    cache.seal(program)
    assert cache.is_intact(program)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert [cache.is_intact(program) for _ in range(3)] == [True] * 3
