"""Requests about the code of tasks: the ConfigMaps of a try, and the Lease by which they are found and deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_gpu_provider.cluster.api.leases import delete_lease, list_leases, put_lease, read_lease
from airflow_gpu_provider.cluster.api.rest import ApiClient, call, delete, find
from airflow_gpu_provider.cluster.model.code_record import CODE, CodeRecord
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged
from airflow_gpu_provider.untrusted import NotParsed, read

CODE_VERBS = ("get", "create", "delete")
"""What is needed of the ConfigMaps in the namespace of a try's pods: docs/rbac/code.yaml."""

_RESOURCE = "configmaps"

_log = logging.getLogger(__name__)


def list_code(api: ApiClient, pool_name: str, *, run: str = "", task: str = "") -> tuple[CodeRecord, ...]:
    """Return what there is of code on a pool: of all runs, or of one by the hash of its DemandKey, or of a task."""
    found = []
    for raw in list_leases(api, CODE, pool_name):
        try:
            record = read(raw, CodeRecord.parse)
        except NotParsed:
            name = raw["metadata"]["name"]
            _log.warning("Lease %s/%s does not name its ConfigMaps, and is left out.", DEMAND_NAMESPACE, name)
            continue
        if run in ("", record.key.hash) and task in ("", record.task):
            found.append(record)
    return tuple(found)


def read_maps(api: ApiClient, record: CodeRecord) -> tuple[Json, ...]:
    """Return the ConfigMaps of a try; none where they are not all written yet."""
    lease = read_lease(api, record.name)
    if lease is None:
        return ()
    maps = [find(api, _path(record, name), resource=_RESOURCE) for name in read(lease, CodeRecord.parse).map_names]
    return tuple(each for each in maps if each) if all(maps) else ()


def write_maps(api: ApiClient, record: CodeRecord, contents: Sequence[Json]) -> tuple[Json, ...]:
    """Write the ConfigMaps of a try and return them; its Lease is there before the first.

    No pod has mounted any yet: what an interrupted call has left is replaced.
    """
    record = replace(record, maps=len(contents))
    put_lease(api, record.manifest(), read_lease(api, record.name))
    manifests = [record.config_map(name, each) for name, each in zip(record.map_names, contents, strict=True)]
    return tuple(_create(api, record, each) for each in manifests)


def _create(api: ApiClient, record: CodeRecord, manifest: Json) -> Json:
    collection = _path(record, "").rstrip("/")
    with suppress(ObjectChanged):
        return call(api, "create", collection, resource=_RESOURCE, body=manifest)
    delete(api, _path(record, manifest["metadata"]["name"]), resource=_RESOURCE)
    return call(api, "create", collection, resource=_RESOURCE, body=manifest)


def delete_code(api: ApiClient, record: CodeRecord) -> bool:
    """Delete the ConfigMaps of a try, and then its Lease; False where that was gone."""
    for name in record.map_names:
        delete(api, _path(record, name), resource=_RESOURCE)
    return delete_lease(api, record.name)


def delete_code_of_task(api: ApiClient, pool_name: str, task: str) -> None:
    """Delete what all tries of a task have left of its code; `task` is the value of TASK_LABEL."""
    for each in list_code(api, pool_name, task=task):
        delete_code(api, each)


def _path(record: CodeRecord, name: str) -> str:
    return f"/api/v1/namespaces/{record.namespace}/configmaps/{name}"
