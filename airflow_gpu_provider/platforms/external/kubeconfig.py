"""Kubeconfigs, read as client-go reads them: the client's own loader fills its settings, and leaves some fields out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Kubeconfig(NamedTuple):
    """The current context's entries of a kubeconfig, and the folder that the user's paths are relative to."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    folder: Path


def load_file(path: str, settings: Any, context: str | None) -> Kubeconfig:
    from kubernetes.config.kube_config import KubeConfigMerger

    if not any(Path(each).expanduser().exists() for each in path.split(os.pathsep)):
        raise FileNotFoundError(f"there is no file {path}")
    merged = KubeConfigMerger(path)
    return load_entries(merged.config, settings, context, config_persister=merged.save_changes)


def load_entries(source: Any, settings: Any, context: str | None, **options: Any) -> Kubeconfig:
    """Load a kubeconfig into the client's settings; return what these leave out as well."""
    from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader

    _drop_nulls(source)
    loader = KubeConfigLoader(source, active_context=context, config_base_path=None, **options)
    loader.load_and_set(settings)
    node = source if isinstance(source, ConfigNode) else ConfigNode("kubeconfig", source)
    names = loader.current_context["context"]
    cluster = node["clusters"].get_with_name(names["cluster"])["cluster"]
    user = node["users"].get_with_name(names["user"])["user"] if names.get("user") else ConfigNode("user", {})
    return Kubeconfig(cluster.value, user.value, Path(user.path).parent if user.path else Path())


def _drop_nulls(source: Any) -> None:
    """Leave out the fields of a kubeconfig's clusters and users that are null: the client's loader takes none."""
    entries = getattr(source, "value", source)  # in a merged one, each entry says from which file it is
    if not isinstance(entries, dict):
        raise ValueError("a text is not a kubeconfig")
    for plural, kind in (("clusters", "cluster"), ("users", "user")):
        for each in entries.get(plural) or ():
            entry = getattr(each, "value", each)
            entry[kind] = {name: value for name, value in (entry.get(kind) or {}).items() if value is not None}
