"""A platform wheel: the control plane, compiled, with the licences and a list (SBOM) of the modules it is made of.

GPU_SANDBOX_WHEEL names its processors, x86_64 or aarch64 (`make dist`). Without it, as where pip builds an sdist, it is
of Python alone, and the first start of a sandbox compiles the control plane.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "GPU_SANDBOX_WHEEL"
PROCESSORS = {"x86_64": ("amd64", 62), "aarch64": ("arm64", 183)}
"""By the platform tag's name: Go's name, and the number in an ELF header (EM_X86_64, EM_AARCH64)."""
STANDARD_LIBRARY = "std"
_LICENCE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|PATENTS|UNLICENSE)\b(?!\.go$).*", re.IGNORECASE)
# A package's folder, the root that licences are looked for up to, and its module; nothing for the program's own.
_LISTED = (
    "{{if .Standard}}{{.Dir}}\t{{.Root}}\t"
    + STANDARD_LIBRARY
    + "{{else if not .Module.Main}}{{.Dir}}\t{{.Module.Dir}}\t"
    "{{with .Module.Replace}}{{.Path}} {{.Version}}{{else}}{{.Module.Path}} {{.Module.Version}}{{end}}{{end}}"
)


class PlatformWheel(BuildHookInterface):
    """Adds the compiled control plane to a wheel for the processors that GPU_SANDBOX_WHEEL names."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        processors = os.environ.get(VARIABLE)
        if not processors or self.target_name != "wheel" or version == "editable":
            return
        if processors not in PROCESSORS:
            raise SystemExit(f"{VARIABLE} is {processors}, where one of {', '.join(PROCESSORS)} is expected")
        self._written = tempfile.TemporaryDirectory(prefix="gpu-sandbox-wheel-")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux2014_{processors}"
        files, sbom = compiled(Path(self.root), processors, Path(self._written.name))
        build_data["force_include"] |= {str(file): f"gpu_sandbox/packaged/{name}" for name, file in files.items()}
        build_data["sbom_files"].append(str(sbom))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_written"):
            self._written.cleanup()


def compiled(project: Path, processors: str, folder: Path) -> tuple[dict[str, Path], Path]:
    """The files of the wheel's folder `packaged`, by name, and its SBOM; what is written goes to `folder`."""
    sys.path.insert(0, str(project))
    from gpu_sandbox import build

    architecture, machine = PROCESSORS[processors]
    program = dataclasses.replace(build.CONTROL_PLANE, architecture=architecture)
    # Of this machine's own, the cache has the one that its sandboxes run.
    own = os.uname().machine == processors
    binary = build.binary_of(build.CONTROL_PLANE if own else program, lambda line: print(line, file=sys.stderr))
    toolchain = build.find_go()
    if toolchain is None:
        raise build.GoMissing("the licences of the control plane are found by Go, which is missing")
    check_elf(binary, machine)
    go, modules = modules_of(str(toolchain.command), binary)
    texts = licences(str(toolchain.command), program.module, architecture)
    if without := {STANDARD_LIBRARY, *modules} - {module for users in texts.values() for module, _ in users}:
        raise SystemExit(f"no licence was found of what is compiled into {binary}: {', '.join(sorted(without))}")
    written = folder / "LICENSES.txt"
    written.write_text(as_text(texts, build.KUBERNETES_VERSION))
    sbom = folder / "controlplane.cdx.json"
    sbom.write_text(json.dumps(as_sbom(go, modules, build.KUBERNETES_VERSION), indent=1) + "\n")
    return {build.CONTROL_PLANE.file: binary, written.name: written}, sbom


def check_elf(binary: Path, machine: int) -> None:
    """Raise SystemExit unless it is for these processors and needs no C library, as manylinux2014 promises."""
    with binary.open("rb") as file:
        header = file.read(64)
        (start,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(start)
        segments = [struct.unpack_from("<I", file.read(size))[0] for _ in range(count)]
    if header[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", header, 18) != (machine,):
        raise SystemExit(f"{binary} is no program for ELF machine {machine}")
    if 3 in segments:  # PT_INTERP
        raise SystemExit(f"{binary} is linked dynamically")


def modules_of(go: str, binary: Path) -> tuple[str, dict[str, str]]:
    """The Go release that compiled it, and the checksum of each module that is in it, by its path and version."""
    first, *lines = _output(go, "version", "-m", str(binary)).splitlines()
    modules: list[list[str]] = []
    for kind, *of in (line.strip("\t").split("\t") for line in lines):
        if kind == "dep":
            modules.append(of)
        elif kind == "=>":
            modules[-1] = of
    return first.rpartition(": go")[2], {f"{path} {version}": sum_ for path, version, sum_ in modules}


def licences(go: str, sources: Path, architecture: str) -> dict[str, list[tuple[str, str]]]:
    """Each text that goes with a compiled package, with the modules that have it and the files that it is in."""
    environment = {
        **os.environ,
        "GOARCH": architecture,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
    }
    listed = _output(go, "list", "-deps", "-f", _LISTED, ".", cwd=sources, env=environment)
    found: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for folder, root, module in (line.split("\t") for line in sorted(set(listed.splitlines())) if line):
        for file in _beside(Path(folder), Path(root)):
            found[file.read_text(errors="replace")].add((module, file.relative_to(root).as_posix()))
    return {text: sorted(users) for text, users in found.items()}


def _beside(folder: Path, root: Path) -> Iterator[Path]:
    """The licences that hold for a package: those of its folder, and of each above it up to its module's."""
    while folder.is_relative_to(root):
        yield from (each for each in sorted(folder.iterdir()) if _LICENCE.fullmatch(each.name) and each.is_file())
        folder = folder.parent


def as_text(texts: dict[str, list[tuple[str, str]]], kubernetes: str) -> str:
    parts = [f"The control plane in this folder, Kubernetes {kubernetes} with etcd, is compiled from these modules.\n"]
    for text, users in sorted(texts.items(), key=lambda item: item[1]):
        parts.append("".join(f"{module}: {file}\n" for module, file in users) + f"{'-' * 80}\n{text.rstrip()}\n")
    return f"\n{'=' * 80}\n".join(parts)


def as_sbom(go: str, modules: dict[str, str], kubernetes: str) -> dict[str, Any]:
    """CycloneDX, with Go's own checksums as go.sum has them."""
    components = [_component(STANDARD_LIBRARY, go)]
    for module, sum_ in sorted(modules.items()):
        path, version = module.split(" ")
        components.append(_component(path, version) | {"properties": [{"name": "go.sum", "value": sum_}]})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "controlplane", "version": kubernetes}},
        "components": components,
    }


def _component(path: str, version: str) -> dict[str, Any]:
    return {"type": "library", "name": path, "version": version, "purl": f"pkg:golang/{path}@{version}"}


def _output(*command: str, **options: Any) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
