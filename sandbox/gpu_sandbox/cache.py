"""The user's folders in which this package keeps what it runs and reads: nobody else may write there."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from gpu_sandbox.errors import FolderNotPrivate


def cache_folder() -> Path:
    """The package's folder in the user's cache: $XDG_CACHE_HOME, by default ~/.cache. Raises FolderNotPrivate."""
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "airflow-gpu-provider"
    return private_folder(folder, variable="XDG_CACHE_HOME")


def private_folder(folder: Path, *, variable: str) -> Path:
    """The folder, made if there is none, with mode 0700; `variable` is what the user could set for another one.

    Raises FolderNotPrivate if it is another user's, or if others could have put something into it. One that others may
    only read, as an archive or an umask leaves it, gets its mode back.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise _not_private(folder, "is no folder", variable) from None
    found = folder.stat()
    for owner in (folder.lstat().st_uid, found.st_uid):  # a link can be another's, too
        if owner not in _own_ids():
            raise _not_private(folder, f"belongs to another user (id {owner})", variable)
    if found.st_mode & 0o022:
        mode = f"0{found.st_mode & 0o777:o}"
        raise _not_private(folder, f"has mode {mode}: others may have put programs there", variable)
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def seal(program: Path) -> None:
    """Write the program's checksum beside it, as `sha256sum --check` reads it."""
    written = _sum_of(program).with_suffix(f".{os.getpid()}")
    written.write_text(_checksum(program))
    written.replace(_sum_of(program))


def is_intact(program: Path) -> bool:
    """Return True if the program is what it was when it was sealed. A process reads it once, some 0.3 s for 125 MB."""
    try:
        return _sum_of(program).read_text() == _checksum(program)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _own_ids() -> set[int]:
    """Under sudo, HOME can be that of the user who called it; then their folder is this process's."""
    ids = {os.geteuid()}
    if os.geteuid() == 0 and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        ids.add(int(caller))
    return ids


def _not_private(folder: Path, problem: str, variable: str) -> FolderNotPrivate:
    return FolderNotPrivate(
        f"{folder}, where the sandbox keeps programs and tokens of yours, {problem}. "
        f"Remove it, and it is made again; or set {variable} to a folder of your own."
    )


def _sum_of(program: Path) -> Path:
    return program.with_name(f"{program.name}.sum")


def _checksum(program: Path) -> str:
    found = program.stat()
    return f"{_sha256(program, found.st_ino, found.st_size, found.st_mtime_ns)}  {program.name}\n"


@lru_cache
def _sha256(program: Path, inode: int, size: int, modified_ns: int) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
