"""The few requests of a Kubernetes API server that decisions are made with, as the Kubernetes client sends them."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ProtocolError

from airflow_gpu_provider.cluster.clock import format_time
from tests.unit.scaling.model.actors import EPOCH, Actors

Raw = dict[str, Any]

_COLLECTIONS = {"configmaps", "leases", "nodes", "pods"}


class ApiServer:
    """Stands where an ApiClient is expected. Objects have versions; a write to an old one is a conflict."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._version = 0
        self.configmaps: dict[str, Raw] = {}
        self.leases: dict[str, Raw] = {}
        self.nodes: dict[str, Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.when_leases_change: Callable[[], None] = lambda: None

    # -- what the client calls -------------------------------------------------------------------------------

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        if not _writes_demand(method, request):
            self._actors.pause()
        if path == "/version":
            return self._actors.request(lambda: ({}, 200, {"Date": self._date()}), lambda: ProtocolError("aborted"))
        return self._actors.request(lambda: self._answer(path, method, request), lambda: ProtocolError("aborted"))

    def _answer(self, path: str, method: str, request: Raw) -> Raw:
        parts = path.strip("/").split("/")
        names = [part for part in parts if part in _COLLECTIONS]
        objects: dict[str, Raw] = getattr(self, names[-1])
        name = parts[-1] if parts[-1] not in _COLLECTIONS else ""
        answer = self._answers[method](self, objects, name, request)
        return marshal.loads(marshal.dumps(answer))  # type: ignore[no-any-return]

    def _date(self) -> str:
        """Return the time as HTTP has it, in whole seconds; it is right."""
        return format_datetime(EPOCH + timedelta(seconds=self._actors.time), usegmt=True)

    def _get(self, objects: dict[str, Raw], name: str, request: Raw) -> Raw:
        if name:
            return self._existing(objects, name)
        query = dict(request["query_params"])
        labels, fields = _pairs(query.get("labelSelector", "")), _pairs(query.get("fieldSelector", ""))
        return {"metadata": {}, "items": [item for item in objects.values() if _is_selected(item, labels, fields)]}

    def _post(self, objects: dict[str, Raw], _: str, request: Raw) -> Raw:
        name = request["body"]["metadata"]["name"]
        if name in objects:
            raise ApiException(status=409, reason="AlreadyExists")
        return self.put(objects, marshal.loads(marshal.dumps(request["body"])))

    def _put(self, objects: dict[str, Raw], name: str, request: Raw) -> Raw:
        self._check_version(self._existing(objects, name), request["body"]["metadata"])
        return self.put(objects, marshal.loads(marshal.dumps(request["body"])))

    def _patch(self, objects: dict[str, Raw], name: str, request: Raw) -> Raw:
        now = self._existing(objects, name)
        self._check_version(now, request["body"]["metadata"])
        return self.put(objects, _merged(now, request["body"]))

    def _delete(self, objects: dict[str, Raw], name: str, request: Raw) -> Raw:
        raw = self._existing(objects, name)
        if objects is self.pods and raw["status"]["phase"] in ("Running", "Pending") and raw["spec"].get("nodeName"):
            raw["metadata"]["deletionTimestamp"] = self.stamp(timedelta(seconds=30))
            return self.put(objects, raw)
        return objects.pop(name)

    _answers: dict[str, Callable[..., Raw]] = {
        "GET": _get,
        "POST": _post,
        "PUT": _put,
        "PATCH": _patch,
        "DELETE": _delete,
    }

    # -- what the model itself does --------------------------------------------------------------------------

    def put(self, objects: dict[str, Raw], raw: Raw) -> Raw:
        """Store an object under a new version."""
        self._version += 1
        raw["metadata"].setdefault("uid", f"uid-{self._version}")
        raw["metadata"].setdefault("creationTimestamp", self.stamp())
        raw["metadata"]["resourceVersion"] = str(self._version)
        objects[raw["metadata"]["name"]] = raw
        if objects is self.leases:
            self.when_leases_change()
        return raw

    def stamp(self, later: timedelta = timedelta(0)) -> str:
        return format_time(EPOCH + timedelta(seconds=self._actors.time) + later)

    def live_leases(self, now: datetime) -> Iterator[Raw]:
        for raw in self.leases.values():
            until = raw["metadata"].get("annotations", {}).get("airflow-gpu-provider/until")
            if until and datetime.fromisoformat(until) > now:
                yield raw

    @staticmethod
    def _existing(objects: dict[str, Raw], name: str) -> Raw:
        if name not in objects:
            raise ApiException(status=404, reason="NotFound")
        return objects[name]

    @staticmethod
    def _check_version(now: Raw, sent: Raw) -> None:
        if sent["resourceVersion"] != now["metadata"]["resourceVersion"]:
            raise ApiException(status=409, reason="Conflict")


def _writes_demand(method: str, request: Raw) -> bool:
    """Say whether it comes right after the lock's check, as what is said to the cloud does (see ModelPlatform)."""
    return method in ("POST", "PUT") and str(request["body"]["metadata"].get("name")).startswith("demand-")


def _is_selected(raw: Raw, labels: list[tuple[str, str]], fields: list[tuple[str, str]]) -> bool:
    mine = raw["metadata"].get("labels", {})
    if any(mine.get(key) != value for key, value in labels):
        return False
    facts = {"spec.nodeName": raw["spec"].get("nodeName", ""), "status.phase": raw.get("status", {}).get("phase")}
    return all(facts[key] == value for key, value in fields)


def _pairs(selector: str) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (part.partition("=") for part in selector.split(",") if part)]


def _merged(now: Any, patch: Any) -> Any:
    """RFC 7386: null takes away, objects are merged, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    base = dict(now) if isinstance(now, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = _merged(base.get(key), value)
    return base
