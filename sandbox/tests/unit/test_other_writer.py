"""Another writer of Leases: after whose changes it writes, and when it lets them be."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from gpu_sandbox.faults import Faults
from gpu_sandbox.other_writer import OtherWriter


class Leases:
    """Two Leases of an API server, and who has written them."""

    def __init__(self) -> None:
        self.versions = {("default", "ours"): 1, ("kube-system", "theirs"): 1}
        self.requests: list[str] = []

    def request(self, method: str, path: str, body: Any, *, content_type: str) -> tuple[int, Any]:
        self.requests.append(method)
        if method == "GET":
            return HTTPStatus.OK, {"items": [self._lease(*key) for key in self.versions]}
        *_, namespace, _, name = path.split("/")
        self.versions[namespace, name] += 1
        return HTTPStatus.OK, self._lease(namespace, name)

    def _lease(self, namespace: str, name: str) -> dict[str, Any]:
        version = str(self.versions[namespace, name])
        return {"metadata": {"namespace": namespace, "name": name, "resourceVersion": version}}


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def writer(leases: Leases, faults: Faults) -> OtherWriter:
    return OtherWriter(control_plane=leases, faults=faults)  # type: ignore[arg-type]


def test_it_writes_once_after_each_change(writer: OtherWriter, leases: Leases, faults: Faults) -> None:
    """Its own change is no reason for another one, and Kubernetes' Leases are left alone."""
    faults.lease_conflict_rate = 1.0
    for _ in range(3):
        writer._look()
    assert leases.versions == {("default", "ours"): 2, ("kube-system", "theirs"): 1}
    leases.versions["default", "ours"] += 1
    writer._look()
    writer._look()
    assert leases.versions["default", "ours"] == 4


def test_without_the_fault_it_asks_for_nothing(writer: OtherWriter, leases: Leases, faults: Faults) -> None:
    faults.lease_conflict_rate = 1.0
    writer._look()
    faults.clear()
    leases.requests.clear()
    writer._look()
    assert leases.requests == []
