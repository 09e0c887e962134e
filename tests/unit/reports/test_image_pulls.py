"""Which pulls the doctor warns of, from a namespace's events."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.reports import status
from tests.unit.training.test_slow_pull import EKS


def pulled(image: str, took: str) -> dict[str, Any]:
    message = f'Successfully pulled image "{image}" in {took} ({took} including waiting). Image size: 12 bytes.'
    return {"metadata": {"uid": took}, "reason": "Pulled", "message": message}


def test_of_each_image_the_slowest_pull_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [pulled("train:1", "2m3s"), pulled("train:1", "6m10.4s"), pulled("eval:1", "59s"), pulled("big:1", "60s")]
    present = {"metadata": {"uid": "u"}, "reason": "Pulled", "message": 'Container image "train:1" already present'}
    asked = []

    def list_items(api: Any, path: str, **selectors: str) -> list[dict[str, Any]]:
        asked.append((path, selectors))
        return [*events, present]

    monkeypatch.setattr(status, "list_items", list_items)
    api: Any = None
    (train, fix), (big, _) = status.slow_pulls(api, EKS, "ml")
    assert train == "in the last hour a pull of train:1 took 6 min 10 s"
    assert fix.startswith("What helps: gpu_nodes(prefetch=[...])")
    assert "g6.xlarge has a local NVMe" in fix
    assert "big:1 took 1 min 0 s" in big
    assert asked == [("/api/v1/namespaces/ml/events", {"resource": "events", "fieldSelector": "reason=Pulled"})]
