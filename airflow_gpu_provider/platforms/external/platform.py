"""Pools whose machines this package never makes, sizes or removes; KubernetesPlatform labels and taints their nodes."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.nodes import list_nodes, write_node
from airflow_gpu_provider.cluster.rest import ApiClient, call, label_selector, list_items
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError, GpuError, PoolDrift, PoolSpecError
from airflow_gpu_provider.platforms.base import Change, Group, Machine, Plan, Platform, Report
from airflow_gpu_provider.platforms.external.kubeconfig import Kubeconfig, load_entries, load_file
from airflow_gpu_provider.platforms.from_connection import FromConnection
from airflow_gpu_provider.pools import Candidate, KubernetesGpuPool, Taint
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

_NODES = "/api/v1/nodes"


class ExternalMachinesPlatform(Platform):
    """A cluster reached by a Kubernetes connection, and machines that are left alone.

    Args:
        owner: Not used: nodes carry no spec of ours.
    """

    def __init__(self, pool: KubernetesGpuPool, owner: str = "") -> None:
        self._pool = pool

    def account(self) -> str:
        return f"the cluster at {self.cluster_access().server}, by connection {self._pool.kubernetes_conn_id!r}"

    def cluster_access(self) -> ClusterAccess:
        return access_from_connection(self._pool.kubernetes_conn_id, self._pool.cluster_context)

    @cached_property
    def _api(self) -> ApiClient:
        return self.cluster_access().api_client()

    def _machines(self) -> dict[str, Machine]:
        """Return the machines of the nodes with the labels that the pool's pods select, by id."""
        return {
            node.machine: Machine(id=node.machine, group=self._pool.name, state="running", launched_at=node.created_at)
            for node in list_nodes(self._api, self._pool.node_selector)
        }

    def _group(self, machines: Mapping[str, Machine]) -> Group:
        return Group(
            name=self._pool.name,
            candidate=Candidate(group=self._pool.name, zone="", instance_type="", market="ON_DEMAND"),
            status="active",
            desired=sum(machine.state != "terminating" for machine in machines.values()),
            max_size=len(machines),
            machines=tuple(machines.values()),
            has_switch=False,
            when_idle="keep",
        )

    def grow(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: machines come by others."""

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Do nothing: machines go by others, or stay."""
        return ()

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        """Do nothing: no machine is asked for."""
        return {}


class KubernetesPlatform(ExternalMachinesPlatform):
    """A pool of nodes that are there already: one group that always exists, whose machines are not ours to remove."""

    # -- labels and taints -------------------------------------------------------------------------------------

    def plan(self, nodes: int) -> Plan:
        """Say which labels and taints nodes lack.

        Raises:
            PoolSpecError: A node that the pool names does not exist.
            PoolDrift: A node belongs to another pool.
        """
        chosen = self._chosen()
        self._check_claims(chosen)
        changes = [Change(action="update", group=n, detail=d) for n, raw in chosen.items() if (d := self._lacks(raw))]
        strays = [name for name in self._labelled() if name not in chosen]
        changes += [
            Change(action="update", group=name, detail=f"is not chosen any more: label {POOL_LABEL} goes")
            for name in strays
        ]
        notes = (
            () if len(chosen) >= nodes else (f"{nodes} nodes are wanted, and {len(chosen)} are there: waits for more",)
        )
        return Plan(pool=self._pool.name, changes=tuple(changes), notes=notes)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        if not plan.changes:
            return
        chosen = self._chosen()
        self._check_claims(chosen)
        for change in plan.changes:
            if change.group in chosen:
                self._write(change.group, self._claim)
            else:
                self._write(change.group, _without_pool_label)
            report(f"node {change.group}: {change.detail}: done")

    def delete(self, report: Report) -> None:
        """Take the pool's label off its nodes; other labels and the taints may be another writer's too, and stay."""
        for name in self._labelled():
            self._write(name, _without_pool_label)
            report(f"node {name} is not in pool {self._pool.name} any more")

    def _chosen(self) -> dict[str, dict[str, Any]]:
        """Return the nodes that the spec chooses, by name."""
        if self._pool.nodes:
            return {name: self._read(name) for name in self._pool.nodes}
        return self._list(self._pool.node_selector_labels)

    def _labelled(self) -> dict[str, dict[str, Any]]:
        return self._list(self._pool.node_selector)

    def _list(self, labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        found = list_items(self._api, _NODES, resource="nodes", labelSelector=label_selector(labels))
        return {raw["metadata"]["name"]: raw for raw in found}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return call(self._api, "get", f"{_NODES}/{name}", resource="nodes")
        except ObjectNotFound as error:
            raise PoolSpecError(
                f"Pool {self._pool.name}: there is no node {name} in the cluster.",
                "Correct the pool's nodes, or let the node join; `kubectl get nodes` shows those that are there.",
                pool=self._pool.name,
                node=name,
            ) from error

    def _check_claims(self, chosen: Mapping[str, Mapping[str, Any]]) -> None:
        for name, raw in chosen.items():
            other = (raw["metadata"].get("labels") or {}).get(POOL_LABEL, self._pool.name)
            if other != self._pool.name:
                raise PoolDrift(
                    f"Node {name} belongs to pool {other}, and pool {self._pool.name} chooses it too.",
                    "Let each node be in one pool; runs that are to share nodes use the same pool.",
                    pool=self._pool.name,
                    node=name,
                )

    def _lacks(self, raw: Mapping[str, Any]) -> str:
        """Say what a node lacks of the spec; empty when nothing."""
        has = raw["metadata"].get("labels") or {}
        labels = [f"label {key}={value}" for key, value in self._pool.labels.items() if has.get(key) != value]
        there = {str(Taint.of_json(taint)) for taint in (raw.get("spec") or {}).get("taints") or ()}
        return ", ".join([*labels, *(f"taint {t}" for t in self._pool.parsed_taints if str(t) not in there)])

    def _claim(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the patch that gives a node what it lacks. A list of taints is replaced as a whole."""
        wanted = self._pool.parsed_taints
        replaced = {(taint.key, taint.effect) for taint in wanted}
        kept = [t for t in (raw.get("spec") or {}).get("taints") or () if (t["key"], t["effect"]) not in replaced]
        own = [{"key": t.key, "value": t.value, "effect": t.effect} for t in wanted]
        spec = {"spec": {"taints": [*kept, *own]}} if wanted else {}
        return {"metadata": {"labels": self._pool.labels}, **spec}

    def _write(self, name: str, patch_for: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        write_node(self._api, lambda: self._read(name), patch_for)

    # -- what there is -----------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        """Return the one group: the nodes with the pool's label, which is what pods select."""
        group = self._group(self._machines())
        return (replace(group, when_idle="cordon" if self._pool.cordon_when_idle else "keep"),)


def _without_pool_label(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": {POOL_LABEL: None}}}


# -- the way to a cluster from Airflow's own connection of type kubernetes -------------------------------------


def access_from_connection(conn_id: str, context: str | None) -> ClusterAccess:
    """Read the connection as the Kubernetes provider's hook does, but leave the client's global settings alone.

    One that is missing is an error, kubernetes_default too. A kubeconfig is read as client-go reads it. Where the API
    server refuses what the connection gave, it is read again, files and all: see `from_connection`.

    Raises:
        ConnectionNotFound: There is no such connection.
        CredentialsError: There is nothing in it to reach a cluster with, or something that is not supported.
    """
    accesses: FromConnection[ClusterAccess] = FromConnection(
        lambda: replace(_read_access(conn_id, context), again=accesses.read_again)
    )
    return accesses.get()


def _read_access(conn_id: str, context: str | None) -> ClusterAccess:
    from kubernetes.client import Configuration

    settings = Configuration()
    try:
        kubeconfig = _load(extras_of(conn_id), settings, context)
        certificates: dict[str, Any] = {
            "ca_data": _base64_of(settings.ssl_ca_cert),
            "client_certificate_data": _base64_of(settings.cert_file),
            "client_key_data": _base64_of(settings.key_file),
        }
    except GpuError:
        raise
    except Exception as error:  # an auth-provider's library raises errors of its own
        raise CredentialsError(
            f"Airflow connection {conn_id} does not configure access to a cluster:"
            f" {' '.join(str(error).split()).rstrip('.')}.",
            "Set a kubeconfig (kube_config_path or kube_config), or in_cluster where Airflow runs in the cluster.",
            connection=conn_id,
        ) from error
    _check_supported(kubeconfig, settings, conn_id)
    access = ClusterAccess(
        server=settings.host,
        token=_token(kubeconfig, settings, conn_id),
        tls_server_name=kubeconfig.cluster.get("tls-server-name") or "",
        proxy_url=kubeconfig.cluster.get("proxy-url") or "",
        **certificates,
    )
    _check_credentials(kubeconfig, access, conn_id)
    return access


def extras_of(conn_id: str) -> dict[str, Any]:
    """Return the extra of a connection of type kubernetes.

    Raises:
        ConnectionNotFound: There is no such connection.
    """
    # Not by KubernetesHook: without a kubernetes_default it uses whatever access to a cluster the worker has.
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    prefix = "extra__kubernetes__"  # of connections that were made before Airflow 2.3
    try:
        extras = BaseHook.get_connection(conn_id).extra_dejson
    except AirflowNotFoundException as error:
        raise ConnectionNotFound.named(conn_id, "kubernetes_conn_id") from error
    return {name.removeprefix(prefix): value for name, value in extras.items()}


_IN_CLUSTER = Kubeconfig({}, {}, Path())


def _load(extras: dict[str, Any], settings: Any, context: str | None) -> Kubeconfig:
    import yaml
    from kubernetes import config
    from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    context = context or extras.get("cluster_context") or None
    if extras.get("in_cluster"):
        config.load_incluster_config(client_configuration=settings)
        return _IN_CLUSTER
    if path := extras.get("kube_config_path"):
        return load_file(path, settings, context)
    if kubeconfig := extras.get("kube_config"):
        parsed = yaml.safe_load(kubeconfig) if isinstance(kubeconfig, str) else kubeconfig
        return load_entries(parsed, settings, context)
    try:
        config.load_incluster_config(client_configuration=settings)
        return _IN_CLUSTER
    except config.ConfigException:
        return load_file(KUBE_CONFIG_DEFAULT_LOCATION, settings, context)


def _check_supported(kubeconfig: Kubeconfig, settings: Any, conn_id: str) -> None:
    """Raise CredentialsError about unsupported settings, without which another identity, or none, is used."""
    proxy, user = str(kubeconfig.cluster.get("proxy-url") or ""), kubeconfig.user
    # The client's own default is localhost, or none: kubernetes 35 and 36 differ.
    if kubeconfig is not _IN_CLUSTER and not kubeconfig.cluster.get("server"):
        what, fix = "names no server", "Give the kubeconfig's cluster a server."
    elif not settings.verify_ssl:
        what, fix = "does not verify the API server's certificate", "the cluster's certificate-authority-data"
        fix = f"Give the kubeconfig {fix}: GPU pools always verify."
    elif proxy and not proxy.startswith(("http://", "https://")):
        scheme = proxy.partition("://")[0]
        what, fix = f"has a proxy-url of the scheme {scheme}", "Give it an HTTP proxy: others are not supported."
    elif as_another := next((key for key in user if key == "as" or key.startswith("as-")), None):
        what = f"uses impersonation ({as_another})"
        fix = "Use an identity that has the permissions itself: impersonation is not supported."
    elif "username" in user:
        what, fix = (
            "has a user name and a password",
            "Give it a token or a certificate: Kubernetes accepts no passwords.",
        )
    else:
        return
    raise CredentialsError(f"Airflow connection {conn_id} {what}.", fix, connection=conn_id)


def _check_credentials(kubeconfig: Kubeconfig, access: ClusterAccess, conn_id: str) -> None:
    """Raise CredentialsError about what shows the API server nothing, or nothing whole: it may be being renewed."""
    plugin = kubeconfig.user.get("exec") or kubeconfig.user.get("auth-provider") or {}
    if plugin and access.token is None and not access.client_certificate_data:
        raise CredentialsError(
            f"Airflow connection {conn_id}: the plugin {plugin.get('command') or plugin.get('name')} of its kubeconfig"
            " returned no credentials. Its stderr is in this process' own log.",
            "Log in again with that plugin.",
            connection=conn_id,
        )
    try:
        if access.ca_data or access.client_certificate_data:
            access.ssl_context()
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(
            f"Airflow connection {conn_id} has incomplete certificates, or ones that do not match its key: {error}.",
            "If they are being renewed, the next attempt reads them again; otherwise correct them.",
            connection=conn_id,
        ) from error


def _token(kubeconfig: Kubeconfig, settings: Any, conn_id: str) -> Callable[[], str] | None:
    """Return what makes a token: a file of one is read each time, and a kubeconfig's own plugin asked again."""

    def token() -> str:
        # The name depends on the client's version; the hook that renews the token runs in either case.
        value = settings.get_api_key_with_prefix("authorization") or settings.api_key.get("BearerToken", "")
        return str(value).removeprefix("Bearer ").removeprefix("bearer ").strip()

    if path := kubeconfig.user.get("tokenFile"):
        return partial(_read_token, kubeconfig.folder / path, conn_id, otherwise=kubeconfig.user.get("token") or "")
    return token if token() else None


def _read_token(file: Path, conn_id: str, *, otherwise: str) -> str:
    try:
        token, why = file.read_text().strip(), "it is empty"
    except (OSError, ValueError) as error:
        token, why = otherwise, str(error)
    if not token:
        raise CredentialsError(
            f"Airflow connection {conn_id} has the tokenFile {file}, which has no token: {why}.",
            "See to what writes it.",
            connection=conn_id,
        )
    return token


def _base64_of(path: str | None) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode() if path else ""
