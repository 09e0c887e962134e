"""Names that pods resolve, kept in the /etc/hosts of each while pods and headless Services come and go.

Without root nobody may listen on port 53, so there is no DNS server: programs that ask one themselves (dig, nslookup)
do not see these names, those that ask the C library, or read /etc/hosts as Go and Java do, see them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes import hostnames
from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.following import Follower

_MACHINE_HOSTS = Path("/etc/hosts")
_TOGETHER_SECONDS = 0.01


@dataclass
class _HostsFile:
    path: Path
    namespace: str
    own: str
    """What a kubelet writes, once."""
    cluster_dns: bool
    written: str = ""

    def write(self, records: str) -> None:
        """Write in place, as containers have the file itself mounted: they would not see another with its name.

        One write and no truncation, so that no reader meets half of it: what was longer before is filled with newlines.
        """
        text = self.own + records
        if text == self.written:
            return
        file = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            os.pwrite(file, text.encode().ljust(os.fstat(file).st_size, b"\n"), 0)
        finally:
            os.close(file)
        self.written = text


class ClusterNames:
    """Follows Services, is told of pods, and writes what resolves into the hosts files that it was given."""

    def __init__(self, api: Api) -> None:
        self._services = Follower(api, "/api/v1/services", changed=self._changed, removed=self._changed)
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._files: dict[str, _HostsFile] = {}
        self._records: list[tuple[str, str, list[str]]] = []
        self._planned: asyncio.Handle | None = None

    async def run(self) -> None:
        """Follow the Services until cancelled."""
        await self._services.run()

    def pod_changed(self, pod: Mapping[str, Any]) -> None:
        """A pod, of whichever node, is now like this."""
        self._pods[pod["metadata"]["uid"]] = pod
        self._changed(pod)

    def pod_removed(self, pod: Mapping[str, Any]) -> None:
        """A pod's object is gone."""
        self._pods.pop(pod["metadata"]["uid"], None)
        self._changed(pod)

    def keep(self, path: Path, pod: Mapping[str, Any], pod_ip: str) -> None:
        """Write the pod's hosts file now, and again whenever other names resolve."""
        file = _HostsFile(
            path=path,
            namespace=pod["metadata"]["namespace"],
            own=hostnames.hosts_file(pod, pod_ip, _MACHINE_HOSTS.read_text() if _MACHINE_HOSTS.exists() else ""),
            cluster_dns=hostnames.asks_cluster_dns(pod),
        )
        self._files[pod["metadata"]["uid"]] = file
        self._write([file])

    def forget(self, pod_uid: str) -> None:
        """The pod is over, and its file with it."""
        self._files.pop(pod_uid, None)

    def _changed(self, _: Mapping[str, Any]) -> None:
        """Write all files soon, once for all changes until then."""
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_later(_TOGETHER_SECONDS, self._write_all)

    def _write_all(self) -> None:
        self._planned = None
        found = list(hostnames.records(self._services.objects.values(), self._pods.values()))
        # Of what pods tell, little changes who has a name.
        if found != self._records:
            self._records = found
            self._write(list(self._files.values()))

    def _write(self, files: list[_HostsFile]) -> None:
        namespaces = {file.namespace for file in files}
        lines = {namespace: hostnames.hosts_lines(self._records, namespace) for namespace in namespaces}
        for file in files:
            file.write(lines[file.namespace] if file.cluster_dns else "")
