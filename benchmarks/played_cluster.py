"""A cluster and a cloud that the benchmark plays in this process: each request takes a while, and is counted.

A thousand nodes' worth of real objects would measure the machine's own API server on its two cores. What is measured is
how many requests a decision takes, and how long they keep it, with what answers of that size cost to read.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.clock import Clock, SystemClock
from airflow_gpu_provider.platforms.base import Group, Machine, Plan, Platform, Say
from airflow_gpu_provider.pools.base import POOL_LABEL

Raw = dict[str, Any]

_AT_ONCE = 8  # calls of one client to the cloud
_BORN = datetime.now(UTC) - timedelta(hours=2)


class PlayedCluster:
    """Stands where an ApiClient is expected, with Leases, Nodes and Pods. For several threads.

    Args:
        latency: Seconds from a request to its answer.
        clock: Where they pass.

    Attributes:
        requests: How many there were, by verb and collection ("GET pods", "PUT leases/lock").
        locked_seconds: For how long the pool's lock was held, all holders together.
    """

    def __init__(self, *, latency: float, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._latency = latency
        self._mutex = threading.Lock()
        self._version = 0
        self._lists: dict[str, list[Raw]] = {}
        self._held_since: float | None = None
        self.requests: Counter[str] = Counter()
        self.locked_seconds = 0.0
        self.objects: dict[str, dict[str, Raw]] = {"leases": {}, "nodes": {}, "pods": {}}

    def put(self, kind: str, raw: Raw) -> Raw:
        self._version += 1
        meta = raw["metadata"]
        meta.setdefault("uid", f"uid-{self._version}")
        meta.setdefault("creationTimestamp", _BORN.strftime("%Y-%m-%dT%H:%M:%SZ"))
        meta["resourceVersion"] = str(self._version)
        self.objects[kind][meta["name"]] = raw
        return raw

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        kind, name = _parts(path)
        what = "leases/lock" if name.startswith("lock-") else kind
        self.clock.sleep(self._latency)
        with self._mutex:
            self.requests[f"{method} {what}"] += 1
            if kind == "version":
                return {}, 200, {"Date": format_datetime(datetime.now(UTC), usegmt=True)}
            answer = json.dumps(self._answer(kind, name, method, request))
            if what == "leases/lock" and method != "GET":
                self._note_lock()
        return json.loads(answer)

    def _answer(self, kind: str, name: str, method: str, request: Raw) -> Raw:
        objects = self.objects[kind]
        if method == "GET" and not name:
            return self._list(objects, dict(request["query_params"]))
        if method == "POST":
            if request["body"]["metadata"]["name"] in objects:
                raise ApiException(status=409, reason="AlreadyExists")
            return self.put(kind, _copy(request["body"]))
        if name not in objects:
            raise ApiException(status=404, reason="NotFound")
        now = objects[name]
        if method == "DELETE":
            return objects.pop(name)
        if method in ("PUT", "PATCH"):
            body = _copy(request["body"])
            version = body["metadata"].get("resourceVersion", now["metadata"]["resourceVersion"])
            if version != now["metadata"]["resourceVersion"]:
                raise ApiException(status=409, reason="Conflict")
            return self.put(kind, body if method == "PUT" else _merged(now, body))
        return now

    def _list(self, objects: dict[str, Raw], query: Mapping[str, str]) -> Raw:
        """Answer page by page; all pages show the moment of the first."""
        limit = int(query.get("limit", 1_000_000))
        token = query.get("continue", "")
        left = self._lists.pop(token, None) if token else None
        if left is None:
            labels, fields = _pairs(query.get("labelSelector", "")), _pairs(query.get("fieldSelector", ""))
            left = [item for item in objects.values() if _is_selected(item, labels, fields)]
        page, left = left[:limit], left[limit:]
        metadata: Raw = {}
        if left:
            token = f"token-{len(self._lists)}-{self._version}-{len(left)}"
            self._lists[token] = left
            metadata["continue"] = token
            if "labelSelector" not in query and "fieldSelector" not in query:
                metadata["remainingItemCount"] = len(left)
        return {"metadata": metadata, "items": page}

    def _note_lock(self) -> None:
        (lock,) = (raw for name, raw in self.objects["leases"].items() if name.startswith("lock-"))
        is_held, now = bool(lock["spec"].get("holderIdentity")), self.clock.monotonic()
        if is_held and self._held_since is None:
            self._held_since = now
        elif not is_held and self._held_since is not None:
            self.locked_seconds += now - self._held_since
            self._held_since = None


class PlayedCloud(Platform):
    """One group, all of whose machines have joined the cluster; each call takes a while."""

    def __init__(self, pool: EksGpuPool, cluster: PlayedCluster, nodes: int, *, latency: float) -> None:
        self._cluster = cluster
        self._latency = latency
        self._mutex = threading.Lock()
        (self._candidate,) = pool.candidates(("us-west-2a",))
        self._max = pool.max_nodes
        self.switch_at: datetime | None = None
        self.machines = [
            Machine(id=f"i-{number}", group=self._candidate.group, state="running", launched_at=_BORN)
            for number in range(nodes)
        ]
        for machine in self.machines:
            _add_node(cluster, pool.name, machine.id)

    def observe(self) -> tuple[Group, ...]:
        self._call("observe")
        group = Group(
            name=self._candidate.group,
            candidate=self._candidate,
            status="active",
            desired=len(self.machines),
            max_size=self._max,
            machines=tuple(self.machines),
            switch_at=self.switch_at,
        )
        return (group,)

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """End machines as Amazon EC2 Auto Scaling does: a call for each, several at a time."""

        def end(machine: Machine) -> None:
            self._call("release")
            with self._mutex:
                self.machines.remove(machine)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(end, machines))
        return ()

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:
        self._call("switch")
        self.switch_at = at

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:
        self._call("switch")
        self.switch_at = None

    def _call(self, what: str) -> None:
        self._cluster.clock.sleep(self._latency)
        with self._mutex:
            self._cluster.requests[f"cloud {what}"] += 1

    def cluster_access(self) -> Any:
        raise NotImplementedError

    def plan(self, nodes: int) -> Plan:
        raise NotImplementedError

    def apply(self, plan: Plan, say: Say, over_quota: Collection[str] = ()) -> None:
        raise NotImplementedError

    def grow(self, sizes: Mapping[str, int]) -> None:
        raise NotImplementedError

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        raise NotImplementedError

    def delete(self, say: Say) -> None:
        raise NotImplementedError


def add_pod(cluster: PlayedCluster, name: str, node: str, *, daemon: bool, gpus: int = 0) -> None:
    """Let a pod run on a node."""
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "device-plugin", "uid": "d"}] if daemon else []
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "100m"}
    mounts = [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(6)]
    container = {"name": "base", "image": "busybox:1.36", "resources": {"limits": limits}, "volumeMounts": mounts}
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"} for kind in "abcd"]
    raw = {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "played"}, "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "conditions": conditions},
    }
    cluster.put("pods", raw)


def _add_node(cluster: PlayedCluster, pool: str, machine: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"}
    raw = {
        "metadata": {"name": f"node-{machine}", "labels": {POOL_LABEL: pool}},
        "spec": {"providerID": f"aws:///us-west-2a/{machine}"},
        "status": {"conditions": [ready], "allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}},
    }
    cluster.put("nodes", raw)


def _parts(path: str) -> tuple[str, str]:
    """Return the collection and the name that a path ends in."""
    parts = path.strip("/").split("/")
    collections = {"leases", "nodes", "pods", "version"}
    return (parts[-1], "") if parts[-1] in collections else (parts[-2], parts[-1])


def _pairs(selector: str) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (part.partition("=") for part in selector.split(",") if part)]


def _is_selected(raw: Raw, labels: Sequence[tuple[str, str]], fields: Sequence[tuple[str, str]]) -> bool:
    mine = raw["metadata"].get("labels") or {}
    facts = {"spec.nodeName": raw["spec"].get("nodeName", ""), "status.phase": raw.get("status", {}).get("phase")}
    return all(mine.get(key) == value for key, value in labels) and all(facts[key] == value for key, value in fields)


def _copy(raw: Any) -> Raw:
    copied: Raw = json.loads(json.dumps(raw))
    return copied


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
