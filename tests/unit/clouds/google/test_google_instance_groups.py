"""Changes of instance groups: how long their operations are waited for, and what becomes of their errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.google import instance_groups as google_instance_groups
from airflow_gpu_provider.clouds.google.instance_groups import InstanceGroups
from airflow_gpu_provider.errors import CloudError, QuotaExceeded

GROUP = "projects/p/zones/z/instanceGroupManagers/g"
OPERATION = "projects/p/zones/z/operations/o"


class Compute:
    """A group of size 0, and an operation that takes `seconds`; time passes by sleeping alone."""

    def __init__(self, seconds: float, error: dict[str, str] | None = None) -> None:
        self.now = 1000.0
        self.looks = 0
        self._seconds = seconds
        self._error = error
        self._over_at = 0.0

    def get(self, path: str, *, permission: str) -> dict[str, Any]:
        if path == GROUP:
            return {"targetSize": 0}
        assert (path, permission) == (OPERATION, "compute.zoneOperations.get")
        self.looks += 1
        return self._operation()

    def post(self, path: str, body: object = None, *, permission: str, **query: Any) -> dict[str, Any]:
        assert path == f"{GROUP}/resize", "a call that may hold for two minutes"
        self._over_at = self.now + self._seconds
        return self._operation()

    def _operation(self) -> dict[str, Any]:
        link = f"https://www.googleapis.com/compute/v1/{OPERATION}"
        if self.now < self._over_at:
            return {"status": "RUNNING", "selfLink": link}
        return {"status": "DONE", "selfLink": link} | ({"error": {"errors": [self._error]}} if self._error else {})

    # As the module `time`

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def grow(compute: Compute) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(google_instance_groups, "time", compute)
        groups: Any = compute
        InstanceGroups(groups).grow(GROUP, 2)


@given(st.floats(0, 3600))
def test_an_operation_is_waited_for_some_seconds_and_one_that_goes_on_is_no_error(seconds: float) -> None:
    compute = Compute(seconds)
    grow(compute)
    waited = compute.now - 1000.0
    assert waited <= 10.0
    assert waited >= min(seconds, 9.0) - 1e-6
    assert compute.looks <= 12


@given(st.floats(0, 9))
def test_an_error_of_an_operation_that_ends_meanwhile_is_raised(seconds: float) -> None:
    with pytest.raises(QuotaExceeded, match="NVIDIA_L4_GPUS"):
        grow(Compute(seconds, {"code": "QUOTA_EXCEEDED", "message": "Quota 'NVIDIA_L4_GPUS' exceeded."}))
    with pytest.raises(CloudError, match="to 2"):
        grow(Compute(seconds, {"code": "INTERNAL_ERROR", "message": "No."}))
