"""A stand-in for nvidia-smi where the machine has no NVIDIA driver: the table, -L and --query-gpu.

Runs inside containers, as a script of its own with nothing but the standard library. The first of its arguments names
the JSON file with the container's GPUs, the second one that with their use (`faults.GpuUse`), if there is any.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = "13.0"

_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "power.limit": "W",
}


_IDLE = {"utilization": 0, "power": 16.0, "memory": 1}


def main(
    argv: Sequence[str], gpus: Sequence[Mapping[str, Any]], uses: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, int]:
    """What nvidia-smi would print for these arguments, GPUs and uses of them, and its exit code."""
    gpus = [{**gpu, **_used(gpu, uses)} for gpu in gpus]
    options = dict(argument.partition("=")[::2] for argument in argv)
    if not gpus:
        return "No devices were found\n", 6
    if "-L" in options or "--list-gpus" in options:
        return "".join(f"GPU {i}: {gpu['name']} (UUID: {gpu['uuid']})\n" for i, gpu in enumerate(gpus)), 0
    if "--query-gpu" in options:
        return _query(options["--query-gpu"].split(","), options.get("--format", "csv"), gpus)
    if "--query-compute-apps" in options:
        names = [name.strip() for name in options["--query-compute-apps"].split(",")]
        return "" if "noheader" in options.get("--format", "") else ", ".join(names) + "\n", 0
    if options:
        return f"Invalid option: {next(iter(argv))} (this simulated nvidia-smi knows -L and --query-gpu)\n", 2
    return _table(gpus), 0


def _used(gpu: Mapping[str, Any], uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The use of a GPU: the last one that is meant for its node and pod; idle where there is none."""
    meant = (use for use in reversed(uses) if all(fnmatchcase(gpu.get(of, ""), use[of]) for of in ("node", "pod")))
    return {name: value for name, value in {**_IDLE, **next(meant, {})}.items() if name in _IDLE}


def _query(fields: Sequence[str], style: str, gpus: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    names = [name.strip() for name in fields]
    rows = [_values(i, gpu) for i, gpu in enumerate(gpus)]
    for name in names:
        if name not in rows[0]:
            return f'Field "{name}" is not a valid field to query.\n', 2
    units = {name: "" if "nounits" in style else _UNITS.get(name, "") for name in names}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    lines = [] if "noheader" in style else [[f"{n} [{units[n]}]" if units[n] else n for n in names]]
    lines += [[f"{row[n]} {units[n]}".strip() for n in names] for row in rows]
    for line in lines:
        writer.writerow([value if i == 0 else f" {value}" for i, value in enumerate(line)])
    return out.getvalue(), 0


def _values(index: int, gpu: Mapping[str, Any]) -> dict[str, str]:
    total = int(gpu["memory_mib"])
    return {
        "index": str(index),
        "uuid": gpu["uuid"],
        "gpu_uuid": gpu["uuid"],
        "name": gpu["name"],
        "gpu_name": gpu["name"],
        "driver_version": DRIVER_VERSION,
        "count": str(index + 1),
        "pci.bus_id": _bus_id(index),
        "gpu_bus_id": _bus_id(index),
        "memory.total": str(total),
        "memory.used": str(gpu["memory"]),
        "memory.free": str(total - gpu["memory"]),
        "utilization.gpu": str(gpu["utilization"]),
        "utilization.memory": "0",
        "temperature.gpu": "34",
        "power.draw": f"{gpu['power']:.2f}",
        "power.limit": "72.00",
        "pstate": "P8",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "[N/A]",
        "ecc.errors.uncorrected.volatile.total": "0",
        "timestamp": f"{datetime.now():%Y/%m/%d %H:%M:%S.%f}"[:-3],
    }


def _bus_id(index: int) -> str:
    return f"00000000:{0x30 + index:02X}:00.0"


def _table(gpus: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{datetime.now():%a %b %e %H:%M:%S %Y}",
        "+" + "-" * 89 + "+",
        _line(f"NVIDIA-SMI {DRIVER_VERSION}", f"Driver Version: {DRIVER_VERSION}", f"CUDA Version: {CUDA_VERSION}"),
        "|" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "|",
        _row("GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
        _row("Fan  Temp   Perf          Pwr:Usage/Cap", "Memory-Usage".rjust(22), "GPU-Util  Compute M."),
        "|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|",
    ]
    for i, gpu in enumerate(gpus):
        usage = f"{gpu['memory']:>7}MiB / {gpu['memory_mib']:>6}MiB"
        draw = f"N/A   34C    P8           {gpu['power']:>4.0f}W /  72W"
        lines += [
            _row(f"{i:>3}  {gpu['name'][:24]:<24}     On", f"{_bus_id(i)} Off", "0".rjust(20)),
            _row(draw, usage, f"{gpu['utilization']}%      Default".rjust(20)),
            "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+",
        ]
    lines += [
        "",
        "+" + "-" * 89 + "+",
        f"| {'Processes:':<87} |",
        f"|{'=' * 89}|",
        f"| {'No running processes found':<87} |",
        "+" + "-" * 89 + "+",
    ]
    return "\n".join(lines) + "\n"


def _line(left: str, middle: str, right: str) -> str:
    return f"| {left:<38} {middle:<26} {right:<21} |"


def _row(left: str, middle: str, right: str) -> str:
    return f"| {left:<39} | {middle:<22} | {right:>20} |"


if __name__ == "__main__":
    of_gpus, of_use, *given = sys.argv[1:]
    present: list[dict[str, Any]] = []
    with suppress(FileNotFoundError), open(of_use) as file:
        present = json.load(file)
    with open(of_gpus) as file:
        text, code = main(given, json.load(file), present)
    sys.stdout.write(text)
    raise SystemExit(code)
