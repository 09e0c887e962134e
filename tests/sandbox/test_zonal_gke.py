"""A night on a zonal GKE cluster, whose one control plane is away when the first node pool is autoscaled."""

from __future__ import annotations

import pytest

from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually
from tests.sandbox.test_same_dag import gke, one_night

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")


def test_a_night_bears_that_the_first_autoscaled_node_pool_takes_the_control_plane_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    timings = GoogleTimings(node_pool_create=0.3, driver=0.5, control_plane_restart=3.0, stale=0.0)
    zone = "us-central1-a"
    with Sandbox(platform="gke", location=zone, zones=[zone], boot_seconds=0.5, timings=timings) as sandbox:
        for name, value in sandbox.env().items():
            monkeypatch.setenv(name, value)
        server = sandbox.control_plane.pids()["kube-apiserver"]
        results = one_night(gke(sandbox, scaling="autoscaler"))
        assert sandbox.control_plane.pids()["kube-apiserver"] != server
        assert results["train"] == {"gpus": results["train"]["gpus"]}
        assert (results["scale_down"]["nodes"], results["scale_down"]["desired"]) == (0, 0)
        eventually(lambda: sandbox.google.cluster.status == "RUNNING")
    assert "no node pool of the cluster is autoscaled yet" in capsys.readouterr().out
