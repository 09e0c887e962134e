"""The real control plane of one cluster: etcd, kube-apiserver, kube-scheduler, kube-controller-manager.

Only the API server listens on a port, on loopback, with TLS. etcd is reached by a Unix socket in a folder that
is the owner's alone; the scheduler and the controller manager serve nothing.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import urllib3

from gpu_sandbox.audit_log import AuditLog
from gpu_sandbox.connections import cut_connections
from gpu_sandbox.errors import ComponentFailed
from gpu_sandbox.pki import CertificateAuthority, KeyPair, SigningKey, write_secret
from gpu_sandbox.processes import ComponentProcess, stop_together

LOOPBACK = "127.0.0.1"
_DNS_NAME = "localhost"  # the only one that every machine resolves
START_TIMEOUT = 120.0  # a start takes three seconds of CPU, on a machine that may have other things to do
STOP_TIMEOUT = 5.0
_APISERVER_GRACE = 0.5

# EKS's own default range; the first address is the API server's inside the cluster.
_SERVICE_RANGE = "10.100.0.0/16"
_SERVICE_ADDRESS = "10.100.0.1"
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_AUDIENCES = f"{_ISSUER},https://kubernetes.default.svc"

# Files in the working directory of etcd and the API server: a full path may be longer than the 107 bytes that a
# socket's name can have. etcd insists on something that looks like a port.
_ETCD_CLIENT_SOCKET = "etcd-client:0"
_ETCD_PEER_SOCKET = "etcd-peer:0"


CRITICAL = ["system-node-critical", "system-cluster-critical"]
"""Kubernetes' own priority classes."""


class ControlPlane:
    """One control plane. It writes everything to `data_dir`, which must not exist or must be empty.

    `server`, `ca_data` and `kubeconfig` (an administrator's) are known before it is started; `version` after.
    `audit_log` tells what callers with limited rights needed their roles for.
    `token_webhook_url` is asked about bearer tokens that are not service accounts'; its answers are kept for
    `token_cache_ttl` seconds, to which the API server adds up to ten of its own. Without it no tokens but
    service accounts' are taken. `admission_plugins` are enabled beside Kubernetes' default ones. With
    `critical_pods_need_quota` a pod of a `system-` priority class needs a ResourceQuota of that scope in its namespace.

    By its name `dns_endpoint`, host and port, the API server has a certificate that the cluster's authority knows
    nothing of: `public_authority`, a PEM file, vouches for it, as an authority of the public does for that of GKE's
    DNS endpoints.
    """

    def __init__(
        self,
        *,
        binary: Path,
        data_dir: Path,
        token_webhook_url: str | None = None,
        token_cache_ttl: float = 10.0,
        cluster_name: str = "sandbox",
        admission_plugins: Sequence[str] = (),
        critical_pods_need_quota: bool = False,
    ) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir.chmod(0o700)
        self._binary = binary
        self._data_dir = data_dir
        self.audit_log = AuditLog(data_dir)
        self._cluster_name = cluster_name
        self._token_webhook_url = token_webhook_url
        self._token_cache_ttl = token_cache_ttl
        self._admission_plugins = tuple(admission_plugins)
        self._critical_pods_need_quota = critical_pods_need_quota
        # Bound, never listening: it reserves the port until stop, including API server restarts.
        self._port_holder = _reserve_port()
        self._port: int = self._port_holder.getsockname()[1]
        self.server = f"https://{LOOPBACK}:{self._port}"
        self._pki = CertificateAuthority(data_dir / "pki", name=f"{cluster_name}-ca")
        self.ca_data = base64.b64encode(self._pki.certificate).decode()
        self._public_pki = CertificateAuthority(data_dir / "public-pki", name="public")
        self.public_authority = self._public_pki.certificate_file
        self.dns_endpoint = f"{_DNS_NAME}:{self._port}"
        self._signing_key = SigningKey.create(data_dir / "pki")
        self._admin = self._pki.client("admin", user="kubernetes-admin", group="system:masters")
        self._tls = ssl.create_default_context(cadata=self._pki.certificate.decode())
        self._tls.load_cert_chain(self._admin.certificate_file, self._admin.key_file)
        # Connections stay open: a handshake costs either side more than most calls do.
        self._http = urllib3.HTTPSConnectionPool(LOOPBACK, self._port, maxsize=8, ssl_context=self._tls)
        self.kubeconfig = self._write_kubeconfig("kubeconfig", self._admin)
        self.version = ""
        self._components: dict[str, ComponentProcess] = {}
        self._stopping = threading.Event()
        self._restart_lock = threading.Lock()

    def start(self) -> None:
        """Return when pods can be created. Raises ComponentFailed, with nothing left running."""
        try:
            deadline = time.monotonic() + START_TIMEOUT
            self._launch(self._etcd())
            # Not before etcd listens: its client's first attempt fails otherwise, and the next one is a second later.
            self._wait_for_socket(self._data_dir / _ETCD_CLIENT_SOCKET, deadline)
            self._launch(self._apiserver())
            self._wait_until_ready(deadline)
            # Not before their roles exist: their watches are forbidden otherwise, and back off for many seconds.
            self._launch(self._scheduler())
            self._launch(self._controller_manager())
            self._wait_for("/api/v1/namespaces/default/serviceaccounts/default", deadline)
        except BaseException:
            self.stop()
            raise
        self.version = str(self.request("GET", "/version")[1]["gitVersion"])

    def stop(self) -> None:
        """End all components; safe to call twice. The files are left to the owner of `data_dir`."""
        self._stopping.set()
        self._http.close()
        with self._restart_lock:
            # An API server that lost its etcd hangs for minutes, so etcd goes last.
            etcd = self._components.pop("etcd", None)
            stop_together(list(self._components.values()), kill_after=STOP_TIMEOUT)
            self._components.clear()
            if etcd:
                stop_together([etcd], kill_after=STOP_TIMEOUT)
        self._port_holder.close()

    def restart_apiserver(self, down_seconds: float = 0.0, *, wait: Callable[[float], bool] | None = None) -> None:
        """Stop the API server, leave it down that long (or until `stop`), start it; returns when it is ready.

        `wait` lets so much time pass, by default the machine's; True if the API server is to stay down.
        """
        wait = wait or self._stopping.wait
        with self._restart_lock:
            apiserver = self._running_apiserver("be restarted")
            # Its graceful end waits a minute for the watches of all clients.
            stop_together([apiserver], kill_after=_APISERVER_GRACE)
            if wait(down_seconds):
                return
            apiserver.start()
            self._wait_until_ready(time.monotonic() + START_TIMEOUT)

    def hang_apiserver(self, seconds: float) -> None:
        """Make the API server answer nothing for this long (or until `stop`): connections stay open and silent."""
        with self._restart_lock, self._running_apiserver("hang").held():
            self._stopping.wait(seconds)

    def cut_connections(self) -> int:
        """Close all connections to the API server, watches too; return how many. New ones are accepted at once."""
        apiserver = self._running_apiserver("lose its connections")
        assert apiserver.pid is not None
        try:
            return cut_connections(apiserver.pid, self._port)
        except OSError as error:
            raise ComponentFailed(f"the API server's connections could not be cut: {error}") from error

    def _running_apiserver(self, to_do: str) -> ComponentProcess:
        apiserver = self._components.get("kube-apiserver")
        if apiserver is None or not apiserver.running:
            raise ComponentFailed(f"the API server is not running, so it cannot {to_do}")
        return apiserver

    def components(self) -> dict[str, bool]:
        """Each component, and whether it runs."""
        return {name: component.running for name, component in list(self._components.items())}

    def pids(self) -> dict[str, int]:
        return {name: one.pid for name, one in list(self._components.items()) if one.pid and one.running}

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """One call as the administrator: HTTP status and decoded body. OSError while the API server is away.

        It has a minute to answer: on a busy machine nothing else is wrong with it.
        """
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type, "Accept": accept}
        try:
            response = self._http.request(method, path, content, headers=headers, retries=False, timeout=60)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"the API server did not answer {method} {path}: {error!r}") from error
        is_json = response.headers.get("Content-Type", "").partition(";")[0] == "application/json"
        return response.status, json.loads(response.data) if is_json else response.data.decode(errors="replace")

    def administrator(self, user: str, *, name: str) -> Path:
        """Write a kubeconfig with this name for a user with administrator permissions."""
        identity = self._pki.client(name, user=user, group="system:masters")
        return self._write_kubeconfig(f"pki/{name}.kubeconfig", identity)

    # Waiting

    def _wait_until_ready(self, deadline: float) -> None:
        self._wait_for("/readyz", deadline)

    def _wait_for_socket(self, path: Path, deadline: float) -> None:
        while not path.is_socket():
            self._components["etcd"].check()
            if time.monotonic() > deadline or self._stopping.wait(0.01):
                raise ComponentFailed(f"etcd did not listen in time:\n{self._components['etcd'].log_tail()}")

    def _wait_for(self, path: str, deadline: float) -> None:
        seen = "nothing yet"
        while time.monotonic() < deadline and not self._stopping.is_set():
            for component in list(self._components.values()):
                component.check()
            try:
                status, body = self.request("GET", path)
            except OSError as error:
                seen = repr(error)
            else:
                if status == 200:
                    return
                seen = f"{status} {str(body)[:2000]}"
            self._stopping.wait(0.05)
        raise ComponentFailed(f"the API server did not answer {path} with 200 in time; last: {seen}")

    # The components' command lines

    def _launch(self, argv: Sequence[str]) -> None:
        component = ComponentProcess(
            argv=[str(self._binary), *argv], cwd=self._data_dir, log_file=self._data_dir / f"{argv[0]}.log"
        )
        component.start()
        self._components[component.name] = component

    def _etcd(self) -> list[str]:
        return [
            "etcd",
            "--data-dir=etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls=unix://{_ETCD_CLIENT_SOCKET}",
            f"--advertise-client-urls=unix://{_ETCD_CLIENT_SOCKET}",
            f"--listen-peer-urls=unix://{_ETCD_PEER_SOCKET}",
            f"--initial-advertise-peer-urls=unix://{_ETCD_PEER_SOCKET}",
            f"--initial-cluster=default=unix://{_ETCD_PEER_SOCKET}",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        serving = self._pki.server(
            "kube-apiserver",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            LOOPBACK,
            _SERVICE_ADDRESS,
        )
        public = self._public_pki.server("kube-apiserver", _DNS_NAME)
        kubelet_client = self._pki.client(
            "kubelet-client", user="kube-apiserver-kubelet-client", group="system:masters"
        )
        return [
            "kube-apiserver",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._port}",
            "--permit-port-sharing",
            f"--advertise-address={LOOPBACK}",
            # It refuses to write a loopback address into the `kubernetes` endpoints, and would retry for ever.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving.certificate_file}",
            f"--tls-private-key-file={serving.key_file}",
            f"--tls-sni-cert-key={public.certificate_file},{public.key_file}:{_DNS_NAME}",
            f"--client-ca-file={self._pki.certificate_file}",
            f"--etcd-servers=unix://{_ETCD_CLIENT_SOCKET}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",  # as in EKS and GKE: driver installers are
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            f"--service-account-issuer={_ISSUER}",
            f"--api-audiences={_AUDIENCES}",
            f"--service-account-key-file={self._signing_key.public_key_file}",
            f"--service-account-signing-key-file={self._signing_key.key_file}",
            f"--kubelet-client-certificate={kubelet_client.certificate_file}",
            f"--kubelet-client-key={kubelet_client.key_file}",
            "--kubelet-preferred-address-types=InternalIP",
            *self._token_webhook(),
            *self.audit_log.flags(),
            *([f"--enable-admission-plugins={','.join(self._admission_plugins)}"] if self._admission_plugins else []),
            *self._admission_configuration(),
        ]

    def _admission_configuration(self) -> list[str]:
        """As "Limit Priority Class consumption by default" in Kubernetes' "Resource Quotas" has it."""
        if not self._critical_pods_need_quota:
            return []
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": CRITICAL}
        version = "apiserver.config.k8s.io/v1"
        quotas = {
            "apiVersion": version,
            "kind": "ResourceQuotaConfiguration",
            "limitedResources": [{"resource": "pods", "matchScopes": [scope]}],
        }
        plugins = [{"name": "ResourceQuota", "configuration": quotas}]
        path = self._data_dir / "admission.json"
        path.write_text(json.dumps({"apiVersion": version, "kind": "AdmissionConfiguration", "plugins": plugins}))
        return [f"--admission-control-config-file={path}"]

    def _token_webhook(self) -> list[str]:
        if self._token_webhook_url is None:
            return []
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "webhook", "cluster": {"server": self._token_webhook_url}}],
            "users": [{"name": "apiserver", "user": {}}],
            "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "apiserver"}}],
            "current-context": "webhook",
        }
        path = self._data_dir / "pki" / "token-webhook.kubeconfig"
        write_secret(path, json.dumps(config).encode())
        return [
            f"--authentication-token-webhook-config-file={path}",
            "--authentication-token-webhook-version=v1",
            f"--authentication-token-webhook-cache-ttl={self._token_cache_ttl}s",
        ]

    def _scheduler(self) -> list[str]:
        kubeconfig = self._component_kubeconfig("kube-scheduler")
        return [
            "kube-scheduler",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            "kube-controller-manager",
            f"--kubeconfig={self._component_kubeconfig('kube-controller-manager')}",
            "--use-service-account-credentials",
            # Each controller makes its own account and token first; at the default of 20 calls/s that takes 5 s.
            "--kube-api-qps=500",
            "--kube-api-burst=500",
            f"--service-account-private-key-file={self._signing_key.key_file}",
            f"--root-ca-file={self._pki.certificate_file}",
            "--leader-elect=false",
            "--secure-port=0",
        ]

    # Kubeconfigs

    def _component_kubeconfig(self, component: str) -> Path:
        identity = self._pki.client(component, user=f"system:{component}")
        return self._write_kubeconfig(f"pki/{component}.kubeconfig", identity)

    def _write_kubeconfig(self, name: str, identity: KeyPair) -> Path:
        path = self._data_dir / name
        write_secret(path, json.dumps(self._kubeconfig_of(identity), indent=1).encode())
        return path

    def _kubeconfig_of(self, identity: KeyPair) -> dict[str, Any]:
        user = {
            "client-certificate-data": base64.b64encode(identity.certificate).decode(),
            "client-key-data": base64.b64encode(identity.key).decode(),
        }
        name = self._cluster_name
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": self.server, "certificate-authority-data": self.ca_data},
                }
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
            "current-context": name,
        }


def _reserve_port() -> socket.socket:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((LOOPBACK, 0))
    return holder
