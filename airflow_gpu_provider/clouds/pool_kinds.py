"""Specs of pools of any kind, from JSON: the class of a kind, of this package or of another.

A kind of pool that is not of this package is known by an entry point of the group `airflow_gpu_provider.clouds`: its
name is the kind, its value the pool class, like `aks = "company.aks:AksGpuPool"`. Entry points are read once in a
process, and only for a kind that this package does not have: no DAG file waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import closest, in_seconds

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

_KINDS = {
    "eks": "airflow_gpu_provider.clouds.aws.pool:EksGpuPool",
    "gke": "airflow_gpu_provider.clouds.google.pool:GkeGpuPool",
    "kubernetes": "airflow_gpu_provider.clouds.kubernetes.pool:KubernetesGpuPool",
}
_GROUP = "airflow_gpu_provider.clouds"
_THIS_PACKAGE = "airflow-gpu-provider"


def deserialize_pool(data: Mapping[str, Any]) -> GpuPool:
    """Build the spec that `GpuPool.serialize` wrote, whatever its kind.

    Raises:
        PoolSpecError: The kind is unknown: the record is from a newer release, or of a package that is not installed.
            Or two packages have one kind, or the one that has it cannot be loaded.
    """
    return _class_of(data).deserialize(data)


def pool_as_written(data: Mapping[str, Any]) -> GpuPool:
    """Build the spec that a user wrote in the form of `GpuPool.serialize`: an unknown field is an error.

    Raises:
        PoolSpecError: As `deserialize_pool`; or a field, or a key in one, is unknown, or a field is missing, or a value
            cannot work.
    """
    cls, name = _class_of(data), str(data.get("name", ""))
    known = {f.name for f in fields(cls)}
    if unknown := [str(key) for key in data if key not in {*known, "kind", "version"}]:
        near = {key: closest(key, known) for key in unknown}
        fixes = [f"write {match} for {key}" if match else f"leave {key} out" for key, match in near.items()]
        what = f"Pool {name!r}: {cls.__name__} has no field {', '.join(unknown)}."
        fix = ", and ".join(fixes)
        raise PoolSpecError(what, f"{fix[0].upper()}{fix[1:]}.", pool=name)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [key for key in needed if key not in data]:
        what = f"Pool {name!r}: {', '.join(missing)} of {cls.__name__} is not given."
        raise PoolSpecError(what, "Add it to the spec.", pool=name)
    return cls(**in_seconds(cls, {key: value for key, value in data.items() if key in known}))


def _class_of(data: Mapping[str, Any]) -> type[GpuPool]:
    kind = data.get("kind", "")
    if path := _KINDS.get(kind):
        found: type[GpuPool] = resolve_name(path)
        return found
    installed = _installed()
    _check_one_package_each(installed)
    others = {each.entry.name: each for each in installed}
    if kind not in others:
        known = ", ".join(sorted({*_KINDS, *others}))
        fix = f"Give one of {known} as its kind, or install the package that has it."
        raise PoolSpecError(f"Unknown kind of pool: {kind!r}.", fix)
    return _loaded(others[kind])


@dataclass(frozen=True, kw_only=True)
class _Installed:
    """An entry point, and the name of the package that has it."""

    package: str
    entry: metadata.EntryPoint


@cache
def _installed() -> tuple[_Installed, ...]:
    found = metadata.entry_points(group=_GROUP)
    return tuple(_Installed(package=each.dist.name if each.dist else each.value, entry=each) for each in found)


def _check_one_package_each(installed: Iterable[_Installed]) -> None:
    packages = {kind: [_THIS_PACKAGE] for kind in _KINDS}
    for each in sorted(installed, key=lambda one: one.package):
        packages.setdefault(each.entry.name, []).append(each.package)
    for kind, names in packages.items():
        if len(names) > 1:
            others = " or ".join(name for name in names if name != _THIS_PACKAGE)
            raise PoolSpecError(f"Packages {' and '.join(names)} all have pools of kind {kind!r}.", f"Remove {others}.")


def _loaded(installed: _Installed) -> type[GpuPool]:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

    package, entry = installed.package, installed.entry
    what = f"Package {package} provides pools of kind {entry.name!r} as {entry.value}"
    fix = f"Install a release of {package} that fits this one of {_THIS_PACKAGE}."
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise PoolSpecError(f"{what}, which cannot be imported: {error}.", fix) from error
    if not (isinstance(found, type) and issubclass(found, GpuPool) and getattr(found, "kind", "") == entry.name):
        raise PoolSpecError(f"{what}, which is no subclass of GpuPool with kind={entry.name!r}.", fix)
    return found
