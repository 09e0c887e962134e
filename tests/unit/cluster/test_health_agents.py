"""Which words of nodes' agents speak against their GPUs: conditions, a cordon's label, taints."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.gpu_evidence import labels_of, why_bad
from airflow_gpu_provider.cluster.model.node import Node


def a_node(*conditions: dict[str, str], taints: tuple[dict[str, str], ...] = (), **metadata: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata},
        "spec": {"taints": list(taints)},
        "status": {"conditions": [ready, *conditions]},
    }


def check(name: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, str]:
    word = "IsNotHealthy" if status == "True" else "IsHealthy"
    return {"type": name, "status": status, "reason": reason or f"{name}{word}", "message": message}


def taint(key: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": "true", "effect": effect}


@pytest.mark.parametrize(
    "name",
    [
        *("GpuMemWatch", "GpuPcieWatch", "GpuInforomWatch", "GpuNvlinkWatch", "GpuThermalWatch", "GpuAllWatch"),
        *("GpuDriverWatch", "GpuXidError", "SysLogsXIDError", "SysLogsSXIDError", "SysLogsGPUFallenOff"),
        *("GpuNvswitchFatalWatch", "GpuDcgmConnectivityFailure", "InfiniBandStateCheck", "a-check-of-ones-own"),
    ],
)
def test_nvsentinels_checks_are_known_by_their_form_and_named(name: str) -> None:
    bad = a_node(check(name, message="ErrorCode:95 GPU:0"))
    assert why_bad(bad) == f"{name}=True ({name}IsNotHealthy: ErrorCode:95 GPU:0)"
    assert [Node.parse(each).usable for each in (bad, a_node(check(name, "False")))] == [False, True]


@pytest.mark.parametrize(
    ("condition", "is_bad"),
    [
        (check("GpuMemWatch", reason="HardwareFailure"), True),
        (check("SysLogsGPUFallenOff", reason="HardwareFailure"), True),
        (check("NVSwitchFatalError", reason="HardwareFailure"), True),
        (check("NVSwitchDown", reason="HardwareFailure"), True),
        (check("NVSwitchNonFatalError", reason="Warning"), False),
        (check("CSPMaintenance"), False),
        (check("GpuMemWatch", "Unknown"), False),
        (check("GpuDefaultDriver", reason="Installed"), False),
        (check("NetworkUnavailable", "False"), False),
    ],
)
def test_other_conditions_by_their_names(condition: dict[str, str], is_bad: bool) -> None:
    assert bool(why_bad(a_node(condition))) is is_bad


def test_what_a_person_has_uncordoned_is_used_again() -> None:
    known = {"quarantinedNodeUncordonedManually": "True"}
    assert why_bad(a_node(check("GpuXidError"), annotations=known)) == ""
    assert why_bad(a_node({"type": "GPUMissing", "status": "True"}, annotations=known)), "another agent's"


@pytest.mark.parametrize("prefix", ["k8saas.nvidia.com/", "gpu.example.com/"])
def test_a_cordon_by_nvsentinel_says_why(prefix: str) -> None:
    cordoned = {f"{prefix}cordon-by": "NVSentinel", f"{prefix}cordon-reason": "GPU-fatal-error-ruleset"}
    node = a_node(labels=cordoned)
    assert why_bad(node) == "cordoned by NVSentinel (GPU-fatal-error-ruleset)"
    assert labels_of(node)
    for label, by in (("cordon-by", "a-person"), ("uncordon-by", "NVSentinel")):
        assert why_bad(a_node(labels={prefix + label: by})) == ""


@pytest.mark.parametrize(
    ("given", "is_bad"),
    [
        (taint("nvidia.com/gpu-xid-error"), True),
        (taint("nvidia.com/gpu-nvlink-error", "NoExecute"), True),
        (taint("nvidia.com/syslog-xid-error"), True),
        (taint("gpu.health/memory-error"), True),
        (taint("nvlink.health/link-down"), True),
        (taint("gpu.nvidia.com/xid"), True),
        (taint("gpu.nvidia.com/gpu-lost"), True),
        (taint("nvidia.com/gpu-error", "PreferNoSchedule"), False),
        (taint("nvidia.com/gpu"), False),
        (taint("nvidia.com/gpu-default-pool"), False),
        (taint("example.com/gpu-failover"), False),
        (taint("gpu-error"), False),
    ],
)
def test_taints(given: dict[str, str], is_bad: bool) -> None:
    why = why_bad(a_node(taints=(given,)))
    assert why == (f"taint {given['key']}=true:{given['effect']}" if is_bad else "")
