"""The row of the trigger that waits for a device plugin is read back as it was written."""

from __future__ import annotations

from airflow_gpu_provider.triggers.device_plugin_ready import PluginRecord


def test_its_row_is_read_back() -> None:
    result: dict[str, object] = {"served_by": "nvidia-device-plugin", "nodes": {"n1": 1}, "change": None}
    row = PluginRecord(pool={"name": "gpu"}, wait={"nodes": 1}, namespace="kube-system", result=result)
    assert PluginRecord.from_record(row.to_record()) == row
