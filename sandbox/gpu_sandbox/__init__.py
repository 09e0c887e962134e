"""A whole GPU cloud on one machine: a real Kubernetes control plane, AWS simulated by moto, nodes that are processes.

Names are resolved on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_sandbox.airflow_home import AirflowHome
    from gpu_sandbox.faults import Faults, GpuUse, Stockout
    from gpu_sandbox.manual_clock import ManualClock
    from gpu_sandbox.sandbox import Sandbox
    from gpu_sandbox.sandbox_process import SandboxProcess

__all__ = ["AirflowHome", "Faults", "GpuUse", "ManualClock", "Sandbox", "SandboxProcess", "Stockout"]

_HOME = {
    "AirflowHome": "airflow_home",
    "Faults": "faults",
    "GpuUse": "faults",
    "ManualClock": "manual_clock",
    "Sandbox": "sandbox",
    "SandboxProcess": "sandbox_process",
    "Stockout": "faults",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
