"""Karpenter in a world's cluster: a NodePool for each pool, and the stand-in that brings and takes its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from gpu_sandbox import Sandbox
from tests.airflow.chaos.clouds import Made, Use
from tests.sandbox.karpenter_objects import install_karpenter, node_pool
from tests.sandbox.provisioner import Kind, Provisioner

NODE_POOL = "karpenter.sh/nodepool"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_DEMAND = (
    "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
    "?labelSelector=airflow-gpu-provider%2Fkind%3Ddemand,airflow-gpu-provider%2Fpool%3D{pool}"
)


class Karpenter:
    """NodeClaims, each with a machine that nobody but Karpenter ends: there is no deadline of the cloud's."""

    machine_types: Mapping[Use, str] = dict.fromkeys(("usual", "scarce", "bystander"), "g6.xlarge")
    node_label = NODE_POOL
    env: Mapping[str, str] = {"CHAOS_PROVISIONER": "karpenter"}

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._provisioners: dict[str, Provisioner] = {}
        install_karpenter(sandbox)

    def prepare(self, pool: str) -> None:
        node_pool(self._sandbox, pool, group="karpenter.k8s.aws")
        kind = Kind(
            source="karpenter",
            labels={NODE_POOL: pool},
            reason="Nominated",
            message="Pod should schedule on: nodeclaim/{name}",
            node_pool=pool,
            brings_plugin=True,
        )
        # A node stays while somebody wants it, as with a long consolidateAfter: so scale-down has one to wait for. Its
        # machine's end takes as long as others need to see it.
        self._provisioners[pool] = Provisioner(
            self._sandbox, kind, end_seconds=1.5, goes=lambda: not self._items(_DEMAND.format(pool=pool))
        ).__enter__()

    def close(self) -> None:
        for provisioner in self._provisioners.values():
            provisioner.__exit__(None, None, None)

    def has_groups(self, pool: str) -> bool:
        return pool in self._provisioners

    def groups(self, pool: str) -> list[dict[str, Any]]:
        """One, of the claims that are not being removed."""
        return [
            {"name": pool, "desired": sum("deletionTimestamp" not in each["metadata"] for each in self._claims(pool))}
        ]

    def instances(self, pool: str) -> list[str]:
        return [each["metadata"]["name"] for each in self._claims(pool)]

    def made(self, pool: str) -> Made:
        return Made()

    def strays(self) -> list[str]:
        return []

    def deadline(self, pool: str) -> datetime | None:
        return None

    def interrupt_spot(self, pool: str, *, one: bool = False) -> bool:
        raise NotImplementedError("Karpenter's spot interruptions are those of its cloud's queue")

    def hold_back_gpus(self, hold: bool) -> None:
        raise NotImplementedError("nodes bring their plugin")

    def expire(self, pool: str) -> None:
        provisioner = self._provisioners[pool]
        for name in provisioner.nodes:
            with suppress(KeyError):  # it has gone by itself in this very moment
                provisioner.expire(name)

    def _claims(self, pool: str) -> list[dict[str, Any]]:
        return self._items(f"{_CLAIMS}?labelSelector={NODE_POOL}%3D{pool}")

    def _items(self, path: str) -> list[dict[str, Any]]:
        status, reply = self._sandbox.control_plane.request("GET", path)
        if status != 200:
            raise OSError(f"the API server does not list {path}: {status}")
        items: list[dict[str, Any]] = reply["items"]
        return items
