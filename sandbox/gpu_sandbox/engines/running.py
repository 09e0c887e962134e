"""Engines in one cluster: their resources, their processes, their webhooks."""

from __future__ import annotations

import base64
import contextlib
import copy
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_sandbox.build import binary_of
from gpu_sandbox.control_plane import LOOPBACK, STOP_TIMEOUT, ControlPlane
from gpu_sandbox.engines.catalogue import ENGINES, Engine, EngineName
from gpu_sandbox.engines.installation import CRD, Installation
from gpu_sandbox.engines.manifests import manifests
from gpu_sandbox.errors import ComponentFailed
from gpu_sandbox.pki import CertificateAuthority, KeyPair
from gpu_sandbox.ports import free_port
from gpu_sandbox.processes import ComponentProcess, stop_together

_POLL = 0.05
_START_TIMEOUT = 600.0  # five controllers and fifty schemas, on a machine that may have other things to do
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def compile_engines(names: Iterable[EngineName], progress: Callable[[str], None]) -> Mapping[EngineName, Path]:
    """The binary of each that has a program: minutes, where one is not in the cache.

    Raises GoMissing or BuildFailed.
    """
    return {name: binary_of(program, progress) for name in names if (program := ENGINES[name].program)}


class Engines:
    """The engines of one cluster, which `compile_engines` has the binaries of.

    Each runs as a process of its own, with the rights of an administrator. The API server reaches their
    webhooks on loopback, by a certificate of an authority of their own.
    """

    def __init__(
        self,
        *,
        names: Iterable[EngineName],
        binaries: Mapping[EngineName, Path],
        control_plane: ControlPlane,
        data_dir: Path,
    ) -> None:
        self._engines = [ENGINES[name] for name in names]
        self._binaries = binaries
        self._control_plane = control_plane
        self._data_dir = data_dir
        self._components: dict[str, ComponentProcess] = {}

    def start(self) -> None:
        """Returns when their resources can be created. Raises ComponentFailed, with nothing left running."""
        if not self._engines:
            return
        self._data_dir.mkdir(mode=0o700)
        authority = CertificateAuthority(self._data_dir / "pki", name="engines")
        serving = authority.server("tls", LOOPBACK)
        deadline = time.monotonic() + _START_TIMEOUT
        installation = Installation(self._control_plane, deadline)
        try:
            installs = [_Installed(engine, certificate=authority.certificate) for engine in self._engines]
            installation.resources([crd for install in installs for crd in install.resources()])
            for install in installs:
                self._launch(install, serving)
            for install in installs:
                self._wait_until_listening(install, deadline)
                for made in install.webhooks():
                    installation.create(made)
            for install in installs:
                for made in install.objects():
                    installation.create(made)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes; safe to call twice."""
        stop_together(list(self._components.values()), kill_after=STOP_TIMEOUT)
        self._components.clear()

    def components(self) -> dict[str, bool]:
        """Each engine that has a process, and whether it runs."""
        return {name: component.running for name, component in list(self._components.items())}

    def _launch(self, install: _Installed, serving: KeyPair) -> None:
        engine = install.engine
        if engine.program is None:
            return
        kubeconfig = self._control_plane.administrator(engine.account, name=engine.name)
        component = ComponentProcess(
            argv=[
                str(self._binaries[engine.name]),
                engine.name,
                f"--kubeconfig={kubeconfig}",
                f"--webhook-port={install.port}",
                f"--cert-dir={serving.certificate_file.parent}",
            ],
            cwd=self._data_dir,
            log_file=self._data_dir / f"{engine.name}.log",
        )
        component.start()
        self._components[engine.name] = component

    def _wait_until_listening(self, install: _Installed, deadline: float) -> None:
        component = self._components.get(install.engine.name)
        while component is not None:
            component.check()
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, install.port), timeout=1):
                return
            if time.monotonic() > deadline:
                raise ComponentFailed(f"{component.name} did not listen in time:\n{component.log_tail()}")
            time.sleep(_POLL)


class _Installed:
    """An engine's manifests, made fit for this cluster: its webhooks are on loopback, at `port`."""

    def __init__(self, engine: Engine, *, certificate: bytes) -> None:
        self.engine = engine
        self.port = free_port()
        self._bundle = base64.b64encode(certificate).decode()
        self._manifests = manifests(engine)

    def resources(self) -> list[dict[str, Any]]:
        crds = [copy.deepcopy(each) for each in self._manifests if each["kind"] == CRD]
        for crd in crds:
            if crd["metadata"]["name"] in self.engine.converted:
                crd["spec"]["conversion"] = {
                    "strategy": "Webhook",
                    "webhook": {"clientConfig": self._client_config("/convert"), "conversionReviewVersions": ["v1"]},
                }
        return crds

    def webhooks(self) -> list[dict[str, Any]]:
        made = [copy.deepcopy(each) for each in self._manifests if each["kind"] in _WEBHOOKS]
        for configuration in made:
            configuration["metadata"]["name"] = f"{self.engine.name}-{configuration['metadata']['name']}"
            configuration["webhooks"] = [
                {
                    **webhook,
                    **self.engine.selectors.get(webhook["name"], {}),
                    "clientConfig": self._client_config(webhook["clientConfig"]["service"]["path"]),
                }
                for webhook in configuration["webhooks"]
                if self._is_served(webhook)
            ]
        return made

    def objects(self) -> list[dict[str, Any]]:
        return [each for each in self._manifests if each["kind"] not in (CRD, *_WEBHOOKS)]

    def _is_served(self, webhook: Mapping[str, Any]) -> bool:
        groups = self.engine.webhook_groups
        return groups is None or all(groups.issuperset(rule["apiGroups"]) for rule in webhook["rules"])

    def _client_config(self, path: str) -> dict[str, str]:
        return {"url": f"https://{LOOPBACK}:{self.port}{path}", "caBundle": self._bundle}
