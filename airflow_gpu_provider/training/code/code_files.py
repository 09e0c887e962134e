"""Reads the files of a code folder, and leaves behind what may not travel."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from airflow_gpu_provider.errors import CodeUnusable
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.training.code.left_behind import (
    AIRFLOWIGNORE,
    GPUIGNORE,
    NO_FILE,
    SECRET,
    Rules,
    Syntax,
    Why,
    has_secret,
    is_secret,
)

BUNDLE = "bundle"
"""The value of `code` that takes the whole bundle of the DAG file."""

MOST_MAPS = 3
MOST_BYTES = 700 * 1024
"""Of one ConfigMap. Kubernetes takes 1 MiB, etcd 1.5 MiB of a request, and each file brings its path besides."""

MOST_FILES = 1000
"""Each file is an item of the volume in the pod's spec, which has the same bounds as any other object."""

_LARGEST_SHOWN = 10
_SMALLER = f"Name what the training does not need in {GPUIGNORE}; keep data in a bucket or on a volume."
_EXECUTABLE = stat.S_IXUSR


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """One file. `path` is relative to the code's folder, with slashes."""

    path: str
    data: bytes = field(repr=False)
    is_executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Code:
    """What travels, and by path what does not, and why: a folder's path ends with a slash."""

    files: tuple[CodeFile, ...]
    left_out: tuple[tuple[str, Why], ...] = ()


def given_code(code: object) -> str:
    """Return a task's `code`, which may be a Path; raises CodeUnusable if it is no relative path."""
    given = str(code) if isinstance(code, PurePath) else code
    fix = f"Give {BUNDLE!r}, or a folder relative to the DAG file, such as 'trainer/'."
    if not isinstance(given, str) or not given:
        raise CodeUnusable(f"code={code!r}.", fix)
    if is_template(given):
        raise CodeUnusable(f"code={given!r}: code is not templated.", fix)
    if os.path.isabs(given):
        raise CodeUnusable(f"code={given!r} is an absolute path.", "Give the folder relative to the DAG file.")
    return given


def code_folder(code: str, dag_file: Path, bundle: Path) -> Path:
    """Return the folder that `code` names; links are resolved.

    Raises:
        CodeUnusable: It is not there, is no folder, or is outside of the DAG file's bundle.
    """
    code = given_code(code)
    folder = bundle if code == BUNDLE else dag_file.parent / code
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CodeUnusable(f"code={code!r}: {folder} {what}.", "Give a folder, relative to the DAG file.")
    _check_inside(folder, bundle, f"code={code!r}")
    return folder.resolve()


def read_code(folder: Path, bundle: Path, syntax: Syntax = "glob") -> Code:
    """Read what travels of a folder of `code_folder`, in the order of its paths.

    Raises:
        CodeUnusable: A link leaves the bundle, a file cannot be read, or there is nothing, or too much.
    """
    left_out: list[tuple[str, Why]] = []
    found = [*_Walk(bundle.resolve(), syntax, left_out).files(folder)]
    _check_amount(found)
    files = []
    for each in found:
        data = _content(each)
        if has_secret(data):
            left_out.append((each.path, SECRET))
        else:
            files.append(CodeFile(path=each.path, data=data, is_executable=each.is_executable))
    if not files:
        raise _nothing(folder, sorted(left_out))
    return Code(files=tuple(files), left_out=tuple(sorted(left_out)))


def too_much(what: str, sizes: Iterable[tuple[str, int]]) -> CodeUnusable:
    """Return the error for code that does not fit, with its largest files; `sizes` are bytes by path."""
    largest = sorted(sizes, key=lambda each: (-each[1], each[0]))[:_LARGEST_SHOWN]
    shown = ", ".join(f"{path} ({kib(size)})" for path, size in largest)
    return CodeUnusable(
        f"{what}, and {MOST_MAPS} ConfigMaps of {kib(MOST_BYTES)} are the most. The largest: {shown}.", _SMALLER
    )


def too_large(path: str, size: int) -> CodeUnusable:
    """Return the error for a file that fits into no map; `size` is what it takes there, in bytes."""
    return CodeUnusable(
        f"File {path} of the code takes {kib(size)} of a ConfigMap, and one file may have {kib(MOST_BYTES)},"
        f" or {kib(MOST_BYTES * 3 // 4)} if it is not UTF-8, which travels in base64.",
        _SMALLER,
    )


def _nothing(folder: Path, all_left_out: Sequence[tuple[str, Why]]) -> CodeUnusable:
    left_out = [each for each in all_left_out if PurePosixPath(each[0]).name not in (AIRFLOWIGNORE, GPUIGNORE)]
    if not left_out:
        return CodeUnusable(f"The folder {folder} of the code has no files.", "Give the folder that has the code.")
    shown = ", ".join(f"{path} ({why})" for path, why in left_out[:_LARGEST_SHOWN])
    more = f" and {len(left_out) - _LARGEST_SHOWN} more" if len(left_out) > _LARGEST_SHOWN else ""
    return CodeUnusable(
        f"All files of {folder} are left out of the code: {shown}{more}.",
        f"Take back in {GPUIGNORE} what the training needs, such as `!trainer/`.",
    )


def kib(size: int) -> str:
    return f"{-(-size // 1024)} KiB"


@dataclass(frozen=True, kw_only=True)
class _Found:
    path: str
    file: Path
    size: int
    is_executable: bool


class _Walk:
    """Walks a folder, in the order of names; `left_out` takes what is passed over."""

    def __init__(self, bundle: Path, syntax: Syntax, left_out: list[tuple[str, Why]]) -> None:
        self._bundle = bundle
        self._syntax = syntax
        self._left_out = left_out

    def files(
        self, folder: Path, name: str = "", rules: Rules | None = None, above: frozenset[Path] = frozenset()
    ) -> Iterator[_Found]:
        """Yield the files of a folder that travel, as far as names tell; `above` are the folders that it is in."""
        here = folder.resolve()
        if here in above:
            raise CodeUnusable(f"The folder {name} of the code contains itself, by a link.", "Remove the link.")
        rules = (rules or Rules()).of_folder(folder, name, self._syntax)
        for entry in sorted(folder.iterdir()):
            is_folder = entry.is_dir()
            path = f"{name}{entry.name}"
            shown = f"{path}/" if is_folder else path
            why = rules.why(shown)
            if why is None and entry.is_symlink():
                why = self._where_it_leads(entry, path)
            if why is not None:
                self._left_out.append((shown, why))
            elif is_folder:
                yield from self.files(entry, shown, rules, above | {here})
            elif not entry.is_file():
                self._left_out.append((shown, NO_FILE))
            elif entry.name not in (AIRFLOWIGNORE, GPUIGNORE):
                yield self._found(entry, path)

    def _where_it_leads(self, link: Path, path: str) -> Why | None:
        """Return why what a link leads to does not travel, whatever the link's own name."""
        if not link.exists():
            raise CodeUnusable(f"The link {path} of the code leads nowhere.", "Remove it, or name it in .gpuignore.")
        _check_inside(link, self._bundle, f"The link {path} of the code")
        target = link.resolve().relative_to(self._bundle).as_posix()
        return SECRET if is_secret(target) else None

    def _found(self, file: Path, path: str) -> _Found:
        _check_path(path)
        status = file.stat()
        return _Found(path=path, file=file, size=status.st_size, is_executable=bool(status.st_mode & _EXECUTABLE))


def _check_inside(path: Path, bundle: Path, what: str) -> None:
    if not path.resolve().is_relative_to(bundle.resolve()):
        raise CodeUnusable(
            f"{what} leads out of the DAG file's bundle {bundle}, to {path.resolve()}.",
            "Keep the code in the bundle: nothing else of Airflow's machine may get into a pod.",
        )


def _check_path(path: str) -> None:
    """Raise CodeUnusable for a path that a volume cannot have (ValidateLocalNonReservedPath in Kubernetes)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise CodeUnusable(f"The name of file {path!r} of the code is not UTF-8.", "Rename it.") from None
    if PurePosixPath(path).parts[0].startswith(".."):
        raise CodeUnusable(f"File {path} of the code begins with two dots.", "Rename it: no volume can have it.")


def _check_amount(found: Iterable[_Found]) -> None:
    """Raise CodeUnusable before anything is read of a folder that is too large in any case."""
    sizes = [(each.path, each.size) for each in found]
    total = sum(size for _, size in sizes)
    if total > MOST_MAPS * MOST_BYTES:
        raise too_much(f"The code has {kib(total)} in {len(sizes)} files", sizes)
    if len(sizes) > MOST_FILES:
        raise too_much(f"The code has {len(sizes)} files, more than {MOST_FILES}", sizes)


def _content(each: _Found) -> bytes:
    try:
        return each.file.read_bytes()
    except OSError as error:
        raise CodeUnusable(
            f"File {each.path} of the code cannot be read: {error.strerror}.",
            f"Let Airflow's user read it, or name it in {GPUIGNORE}.",
        ) from error
