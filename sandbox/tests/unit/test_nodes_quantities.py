"""Kubernetes quantities, and what a pod asks of its node."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.nodes.quantities import divided, parse, requests, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", Decimal("0.5")), ("2Gi", 2 * 2**30), ("1k", 1000), ("1e3", 1000), ("1.5M", 1_500_000), (2, 2)],
)
def test_parse(text: str | int, value: Decimal | int) -> None:
    assert parse(text) == value


def test_what_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="'many' is not a Kubernetes quantity"):
        parse("many")


def test_rounding_is_up() -> None:
    assert whole("1500m") == 2
    assert divided("1500m", "1") == 2
    assert divided("1Gi", "1Mi") == 1024
    assert divided("1", "0") == 1


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "Ki", "M", "Mi", "G", "Gi"]))
def test_suffixes_scale(number: int, suffix: str) -> None:
    assert parse(f"{number}{suffix}") == number * parse(f"1{suffix}")


def asks(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_a_pod_asks_for_the_larger_of_its_containers_together_and_each_init_container() -> None:
    spec: dict[str, Any] = {"containers": [asks("1"), asks("500m")], "initContainers": [asks("2")]}
    assert requests({"spec": spec}) == {"cpu": Decimal(2)}
    spec["initContainers"].insert(0, asks("1", restartPolicy="Always"))
    assert requests({"spec": spec}) == {"cpu": Decimal(3)}


def test_a_limit_is_a_request_where_none_is_named() -> None:
    container = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert requests({"spec": {"containers": [container]}}) == {"nvidia.com/gpu": Decimal(2)}
