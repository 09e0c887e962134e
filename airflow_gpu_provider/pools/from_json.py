"""Pool specs from JSON: those that `GpuPool.serialize` wrote, and those that people write in that form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool

_KINDS = {
    "eks": "airflow_gpu_provider.pools.eks:EksGpuPool",
    "gke": "airflow_gpu_provider.pools.gke:GkeGpuPool",
    "kubernetes": "airflow_gpu_provider.pools.kubernetes:KubernetesGpuPool",
}


def deserialize_pool(data: Mapping[str, Any]) -> GpuPool:
    """Build the spec that `GpuPool.serialize` wrote, whatever its kind.

    Raises:
        PoolSpecError: The kind is unknown: the record is from a newer release.
    """
    return _class_of(data).deserialize(data)


def pool_as_written(data: Mapping[str, Any]) -> GpuPool:
    """Build the spec that a user wrote in the form of `GpuPool.serialize`: an unknown field is an error.

    Raises:
        PoolSpecError: The kind is unknown, a field is unknown or missing, or a value cannot work.
    """
    cls, name = _class_of(data), str(data.get("name", ""))
    known = {f.name for f in fields(cls)}
    if unknown := [str(key) for key in data if key not in {*known, "kind", "version"}]:
        near = {key: get_close_matches(key, known, n=1) for key in unknown}
        fixes = [f"write {match[0]} for {key}" if match else f"leave {key} out" for key, match in near.items()]
        what = f"Pool {name!r}: {cls.__name__} has no field {', '.join(unknown)}."
        fix = ", and ".join(fixes)
        raise PoolSpecError(what, f"{fix[0].upper()}{fix[1:]}.", pool=name)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [key for key in needed if key not in data]:
        what = f"Pool {name!r}: {', '.join(missing)} of {cls.__name__} is not given."
        raise PoolSpecError(what, "Add it to the spec.", pool=name)
    return cls.deserialize(data)


def _class_of(data: Mapping[str, Any]) -> type[GpuPool]:
    path = _KINDS.get(data.get("kind", ""))
    if path is None:
        known = ", ".join(sorted(_KINDS))
        raise PoolSpecError(f"Unknown kind of pool: {data.get('kind')!r}.", f"Give one of {known} as its kind.")
    module, name = path.split(":")
    return cast("type[GpuPool]", getattr(import_module(module), name))
