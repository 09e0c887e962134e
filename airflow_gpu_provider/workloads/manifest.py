"""A workload's manifest as an operator is given it: a dict, or YAML, with or without Jinja expressions. Pure."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from typing import Any

import yaml

from airflow_gpu_provider.cluster.jobs import QUEUE_LABEL
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pods.kueue import check_queue_name
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.workloads.kinds import Manifest, kind_of, templates_of

FILES = (".yaml", ".yml", ".json")
"""How the name of a manifest's file ends."""

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes makes names: no words, and nothing that looks alike
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def is_still_text(manifest: Any) -> bool:
    """Return True if it cannot be read yet: a file's name, or YAML with expressions that are still to be rendered."""
    return isinstance(manifest, str) and (manifest.endswith(FILES) or is_template(manifest))


def read_manifest(manifest: Any) -> Manifest:
    """Return the manifest as a dict.

    Raises:
        PoolSpecError: It is not one object of a known kind with pod templates, or its file was not found.
    """
    if isinstance(manifest, str):
        if manifest.endswith(FILES):
            raise PoolSpecError(
                f"The manifest's file {manifest} was not found.",
                "Put it next to the DAG's file, or into a folder of the DAG's template_searchpath.",
            )
        manifest = _parsed(manifest)
    if not isinstance(manifest, Mapping):
        raise PoolSpecError(f"manifest={manifest!r}.", "Give a dict, YAML, or the name of a .yaml file.")
    read = dict(manifest)
    templates_of(copy.deepcopy(read))
    return read


def with_queue(manifest: Manifest, queue_name: str | None) -> Manifest:
    """Return the manifest with its Kueue queue, suspended until Kueue admits it.

    Raises:
        PoolSpecError: It is suspended, and in no queue, so that nothing would ever start it; or in another one.
    """
    kind, metadata = kind_of(manifest), manifest.get("metadata") or {}
    check_queue_name(queue_name, metadata.get("labels"))
    labels = {**(metadata.get("labels") or {}), **({QUEUE_LABEL: queue_name} if queue_name else {})}
    if QUEUE_LABEL not in labels:
        if kind.is_suspended(manifest):
            raise PoolSpecError(
                f"The {kind.kind} is suspended, and nothing would let it begin.",
                "Leave suspend out, or give queue_name= for Kueue to admit it.",
            )
        return manifest
    queued: Manifest = {**manifest, "metadata": {**metadata, "labels": labels}}
    policy = queued
    for key in kind.policy:
        policy[key] = {**(policy.get(key) or {})}
        policy = policy[key]
    policy["suspend"] = True
    return queued


def named(manifest: Manifest, *, namespace: str | None, prefix: str) -> Manifest:
    """Return the manifest with a namespace and a name: its own, or else made of its `generateName` or of `prefix`.

    Raises:
        PoolSpecError: It names another namespace.
    """
    metadata = dict(manifest.get("metadata") or {})
    own = metadata.get("namespace")
    if namespace and own not in (None, namespace):
        raise PoolSpecError(f"The manifest's namespace is {own}, and namespace={namespace!r}.", "Give one of them.")
    metadata["namespace"] = own or namespace or "default"
    begin = metadata.pop("generateName", None) or f"{_NOT_IN_NAMES.sub('-', prefix.lower()).strip('-')[:40]}-"
    metadata.setdefault("name", f"{begin}{''.join(random.choices(_SUFFIX, k=5))}")
    return {**manifest, "metadata": metadata}


def _parsed(text: str) -> Any:
    try:
        objects = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise PoolSpecError(f"The manifest is no YAML: {error}.", "Correct it.") from error
    if len(objects) != 1:
        raise PoolSpecError(f"The manifest has {len(objects)} objects.", "Give one, which makes the pods.")
    return objects[0]
