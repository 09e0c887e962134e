"""Another writer of the cluster's Leases, as a fault: a client with the version that it read meets a conflict."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from gpu_sandbox.clock import SystemClock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.faults import Faults

_LEASES = "/apis/coordination.k8s.io/v1/leases"
_LOOK_SECONDS = 0.1
_ANNOTATION = "gpu-sandbox/another-writer"


class OtherWriter:
    """Annotates Leases soon after they were changed, a share of them (`faults.lease_conflict_rate`).

    Kubernetes' own Leases, in the namespaces `kube-*`, are left alone.
    """

    def __init__(self, *, control_plane: ControlPlane, faults: Faults) -> None:
        self._control_plane = control_plane
        self._faults = faults
        self._seen: dict[str, str] = {}
        # It races with clients of the API server, which live in real time.
        self._loop = SystemClock().loop(self._look, poll=_LOOK_SECONDS, name="sandbox-other-writer")

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def _look(self) -> None:
        if not self._faults.lease_conflict_rate:
            self._seen.clear()
            return
        for path, version in self._versions().items():
            if self._seen.get(path) != version:
                self._seen[path] = self._write(path) if self._faults.draw_lease_conflict() else version

    def _versions(self) -> dict[str, str]:
        status, leases = self._call("GET", _LEASES)
        return {
            f"/apis/coordination.k8s.io/v1/namespaces/{meta['namespace']}/leases/{meta['name']}": meta[
                "resourceVersion"
            ]
            for meta in (lease["metadata"] for lease in (leases["items"] if status == HTTPStatus.OK else ()))
            if not meta["namespace"].startswith("kube-")
        }

    def _write(self, path: str) -> str:
        """Change the Lease, and say which version it has now; none where it is gone."""
        change = {"metadata": {"annotations": {_ANNOTATION: str(self._faults.deadline_seconds())}}}
        status, lease = self._call("PATCH", path, change)
        return str(lease["metadata"]["resourceVersion"]) if status == HTTPStatus.OK else ""

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            return self._control_plane.request(method, path, body, content_type="application/merge-patch+json")
        except OSError:
            return HTTPStatus.SERVICE_UNAVAILABLE, {}
