"""A stand-in for nvidia-smi where the machine has no NVIDIA driver: the table, -L and --query-gpu.

Runs inside containers, as a script of its own with nothing but the standard library, and reads the container's GPUs
from the JSON file that its first argument names.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
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


def main(argv: Sequence[str], gpus: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """What nvidia-smi would print for these arguments and GPUs, and its exit code."""
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
        "memory.used": "1",
        "memory.free": str(total - 1),
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "34",
        "power.draw": "16.00",
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
        usage = f"{1:>7}MiB / {gpu['memory_mib']:>6}MiB"
        lines += [
            _row(f"{i:>3}  {gpu['name'][:24]:<24}     On", f"{_bus_id(i)} Off", "0".rjust(20)),
            _row("N/A   34C    P8             16W /  72W", usage, "0%      Default".rjust(20)),
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
    with open(sys.argv[1]) as file:
        text, code = main(sys.argv[2:], json.load(file))
    sys.stdout.write(text)
    raise SystemExit(code)
