"""Which release of an image nodes are to have: the newest that is old enough, or the one that the pool names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.aws.node_releases import ADOPTED_AFTER, PARAMETERS, Releases, of_new_groups, read
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolSpecError
from tests.unit.clouds.aws.test_eks_spec import spec

AL, BOTTLEROCKET = "AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"
NOW = datetime(2026, 11, 29, 3, tzinfo=UTC)


class Ssm:
    """Parameter Store with a parameter's values, the oldest first; `kept` of them can still be had."""

    def __init__(self, days: list[datetime], kept: int, *, dated: bool = True) -> None:
        self._values = [f"1.36.3-{day:%Y%m%d}" if dated else f"1.{n}.0-7c4f0d2b" for n, day in enumerate(days)]
        self._days, self._kept = days, kept
        self.asked = 0

    def call(self, method: str, *, Name: str) -> dict[str, Any]:  # AWS's name
        self.asked += 1
        _, _, version = Name.partition(":")
        number = int(version or len(self._values))
        if number <= len(self._values) - self._kept:
            raise CloudError("gone.", code="ParameterVersionNotFound")
        value, at = self._values[number - 1], self._days[number - 1]
        return {"Parameter": {"Value": value, "Version": number, "LastModifiedDate": at}}

    def now(self) -> datetime:
        return NOW


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9, unique=True),
    st.integers(1, 9),
    st.booleans(),
)
def test_it_is_the_newest_that_has_been_out_for_a_week(ages: list[int], kept: int, dated: bool) -> None:
    days = [NOW.replace(hour=0) - timedelta(days=age) for age in sorted(ages, reverse=True)]
    ssm: Any = Ssm(days, kept, dated=dated)
    found = read(ssm, AL if dated else BOTTLEROCKET, "1.36")
    seen = list(zip(ssm._values, days, strict=True))[-min(kept, 6) :]
    old = [value for value, day in seen if NOW - day >= ADOPTED_AFTER]
    assert found == Releases(
        adopted=old[-1] if old else "", newest=ssm._values[-1], adopted_at=days[-1] + ADOPTED_AFTER
    )
    assert ssm.asked <= 6 + 1


def test_new_groups_are_made_from_it() -> None:
    week = [NOW - timedelta(days=9), NOW - timedelta(days=1)]
    ssm: Any = Ssm(week, 2)
    assert of_new_groups(ssm, spec().pool, "1.36") == "1.36.3-20261120"
    assert of_new_groups(ssm, spec(ami_release="1.36.3-20261001").pool, "1.36") == "1.36.3-20261001"
    assert of_new_groups(ssm, spec(ami_release="1.35.3-20261001").pool, "1.36") == "1.36.3-20261120"
    custom = {"ami_type": "CUSTOM", "launch_template": "gpu"}
    assert of_new_groups(ssm, spec(**custom).pool, "1.36") == ""
    assert of_new_groups(Ssm(week[1:], 1), spec().pool, "1.36") == ""  # type: ignore[arg-type]

    class Refusing(Ssm):
        def call(self, method: str, *, Name: str) -> dict[str, Any]:
            raise PermissionDenied("refused.")

    assert of_new_groups(Refusing(week, 2), spec().pool, "1.36") == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ami_release": "20260827"}, "no release of an image of ami_type AL2023_x86_64_NVIDIA"),
        ({"ami_release": "1.64.0-7c4f0d2b"}, "no release of an image of ami_type AL2023"),
        ({"ami_release": "1.64.0-7c4f0d2b", "ami_type": BOTTLEROCKET}, None),
        ({"ami_release": "1.36.3-20260827", "ami_type": "CUSTOM", "launch_template": "gpu"}, "exclude each other"),
    ],
)
def test_what_is_none_is_refused_when_the_dag_is_parsed(fields: dict[str, str], said: str | None) -> None:
    if said is None:
        assert spec(**fields).pool.ami_release
        return
    with pytest.raises(PoolSpecError, match=said):
        spec(**fields)


def test_each_image_with_nvidia_s_driver_has_a_parameter() -> None:
    assert all("nvidia" in name or "gpu" in name for name in PARAMETERS.values())
