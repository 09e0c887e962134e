"""CodeRecord: in which ConfigMaps the code of a task's try lies, as a Lease keeps it. Pure.

The maps lie in the namespace of the try's pods. By its Lease the code of a run is found and deleted without a list of
the ConfigMaps of all namespaces, which nobody should have to allow.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from airflow_gpu_provider.cluster.model.lease import PART_OF, lease_manifest
from airflow_gpu_provider.cluster.model.pod_state import OWNER_ANNOTATION, Json
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, TASK_LABEL
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.values import is_dns_label
from airflow_gpu_provider.times import parse_time

CODE = "code"
"""The kind of these Leases."""

_NAMESPACE, _MAPS = "airflow-gpu-provider/namespace", "airflow-gpu-provider/maps"
_MOST_MAPS = 9  # of a Lease that somebody may have edited


@dataclass(frozen=True, kw_only=True)
class CodeRecord:
    """The code of one try.

    Attributes:
        key: The demand that covers its pods, as their labels have it.
        task: The value of their TASK_LABEL.
        try_id: The id that Airflow gives the try.
        namespace: Where they run.
        maps: How many ConfigMaps there are, or are being written or deleted.
    """

    key: DemandKey
    task: str
    try_id: str
    namespace: str
    maps: int
    created_at: datetime | None = None

    @property
    def name(self) -> str:
        """The name of the Lease, and the beginning of the maps' names: each try has its own."""
        return f"code-{hashlib.sha256(self.try_id.encode()).hexdigest()[:20]}"

    @property
    def map_names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(1, self.maps + 1)]

    @property
    def _metadata(self) -> dict[str, dict[str, str]]:
        return {
            "labels": {POOL_LABEL: self.key.pool, RUN_LABEL: self.key.hash, TASK_LABEL: self.task},
            "annotations": {**self.key.annotations, OWNER_ANNOTATION: self.try_id},
        }

    def manifest(self) -> dict[str, object]:
        """Return the Lease."""
        labels, notes = self._metadata.values()
        notes = {**notes, _NAMESPACE: self.namespace, _MAPS: str(self.maps)}
        return lease_manifest(self.name, CODE, labels=labels, notes=notes, spec={})

    def config_map(self, name: str, contents: Json) -> Json:
        """Return one of the maps, with its `data` and `binaryData`."""
        labels, annotations = self._metadata.values()
        metadata = {"name": name, "namespace": self.namespace, "labels": {**PART_OF, **labels}}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "annotations": annotations},
            "immutable": True,
            **contents,
        }

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from a Lease; raises KeyError or ValueError for one that somebody has edited."""
        meta = raw["metadata"]
        notes = meta["annotations"]
        namespace, maps = notes[_NAMESPACE], int(notes[_MAPS])
        if not is_dns_label(namespace) or not 0 < maps <= _MOST_MAPS:
            raise ValueError(f"{maps} maps in namespace {namespace!r}")
        return cls(
            key=DemandKey.parse(dict(raw)),
            task=meta["labels"][TASK_LABEL],
            try_id=notes[OWNER_ANNOTATION],
            namespace=namespace,
            maps=maps,
            created_at=parse_time(meta.get("creationTimestamp")),
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
