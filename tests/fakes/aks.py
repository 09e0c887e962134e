"""A pool class with its platform, as a package beside this one has them: for AKS clusters whose nodes are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from airflow_gpu_provider.clouds.kubernetes.platform import KubernetesPlatform
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.candidates import Market


@dataclass(frozen=True, kw_only=True, eq=True)
class AksGpuPool(GpuPool):
    kind: ClassVar[str] = "aks"
    __hash__ = GpuPool.__hash__

    cluster_name: str
    vm_sizes: Sequence[str] = ("Standard_NC4as_T4_v3",)

    @property
    def platform_path(self) -> str:
        return f"{__name__}:AksPlatform"

    @property
    def gpus_per_node(self) -> int:
        return 1

    @property
    def gpu_products(self) -> tuple[str, ...]:
        return ("T4",)

    @property
    def console_url(self) -> str:
        return "https://portal.azure.com"

    @property
    def cluster_identity(self) -> str:
        return f"aks/{self.cluster_name}"

    @property
    def markets(self) -> tuple[Market, ...]:
        return ("ON_DEMAND",)

    @property
    def machine_types(self) -> Sequence[str]:
        return self.vm_sizes


class AksPlatform(KubernetesPlatform):
    """Of nodes that are there."""


def install(folder: Path, package: str, *entries: str) -> None:
    """Leave in a folder of the path what an installer leaves of a package that registers kinds of pools."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(("[airflow_gpu_provider.clouds]", *entries, "")))
