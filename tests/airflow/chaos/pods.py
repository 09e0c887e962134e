"""What became of every pod with GPUs, by a watch: a pod may come and go between two looks."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

POOL_LABEL = "airflow-gpu-provider/pool"
_SELECT = (POOL_LABEL, "karpenter.sh/nodepool")
_RANK = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True)
class PodStory:
    """One pod as it was last seen. `deleted_early`: somebody asked for its end before its container had ended.

    `rank`: of its gang; 0 for a pod alone.
    """

    uid: str
    name: str
    pool: str
    run_id: str
    phase: str
    rank: int = 0
    namespace: str = "default"
    exit_code: int | None = None
    deleted_early: bool = False
    gone: bool = False

    @property
    def ended_well(self) -> bool:
        return self.exit_code == 0

    @property
    def runs(self) -> bool:
        """Whether it runs, and nobody has asked for its end."""
        return self.phase == "Running" and not (self.gone or self.deleted_early)

    @property
    def is_there(self) -> bool:
        """Whether it has not ended, and nobody has asked for its end."""
        return not (self.gone or self.deleted_early or self.exit_code is not None)

    @property
    def killed(self) -> bool:
        """Whether it was taken away before it had ended by itself."""
        return not self.ended_well and (self.gone or self.deleted_early or self.exit_code is not None)

    def __str__(self) -> str:
        end = "deleted before its end" if self.deleted_early else f"exit code {self.exit_code}"
        return f"{self.name} ({self.phase}, {end}{', gone' if self.gone else ''})"


class PodStories:
    """Watches the cluster's pods from `start` to `stop`; goes on where it was when the API server comes back."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._stories: dict[str, PodStory] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod-stories", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def of_pool(self, pool: str) -> list[PodStory]:
        return [story for story in list(self._stories.values()) if story.pool == pool]

    def of_run(self, run_id: str) -> list[PodStory]:
        return [story for story in list(self._stories.values()) if story.run_id == run_id]

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except Exception:  # noqa: BLE001 - whatever the client makes of an API server that is away
                time.sleep(0.2)

    def _follow(self) -> None:
        found = self._api.list_pod_for_all_namespaces(_preload_content=False, _request_timeout=5)
        listed = json.loads(found.data)
        there = {pod["metadata"]["uid"] for pod in listed["items"]}
        for pod in listed["items"]:
            self._see(pod)
        for uid, story in list(self._stories.items()):
            if uid not in there:
                self._stories[uid] = replace(story, gone=True)
        stream = watch.Watch().stream(
            self._api.list_pod_for_all_namespaces,
            resource_version=listed["metadata"]["resourceVersion"],
            timeout_seconds=300,
        )
        for event in stream:
            self._see(event["raw_object"], gone=event["type"] == "DELETED")
            if self._stopping.is_set():
                return

    def _see(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        pool = pool_of(pod)
        if pool is None:
            return
        metadata, status = pod["metadata"], pod["status"]
        before = self._stories.get(metadata["uid"])
        exit_code = _exit_code(status)
        early = "deletionTimestamp" in metadata and exit_code is None and not gone
        self._stories[metadata["uid"]] = PodStory(
            uid=metadata["uid"],
            name=metadata["name"],
            pool=pool,
            run_id=metadata.get("labels", {}).get("run_id", ""),
            phase=status.get("phase", ""),
            rank=int((metadata.get("annotations") or {}).get(_RANK, 0)),
            namespace=metadata["namespace"],
            exit_code=before.exit_code if exit_code is None and before else exit_code,
            deleted_early=early or bool(before and before.deleted_early),
            gone=gone,
        )


def pool_of(pod: dict[str, Any]) -> str | None:
    """The pool whose nodes a pod selects, if it does."""
    selector = pod["spec"].get("nodeSelector", {})
    return next((selector[label] for label in _SELECT if label in selector), None)


def _exit_code(status: dict[str, Any]) -> int | None:
    """The base container's: ours has no other."""
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            return int(ended["exitCode"])
    return None
