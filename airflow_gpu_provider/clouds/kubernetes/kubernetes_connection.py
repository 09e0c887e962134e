"""The way to a cluster from Airflow's own connection of type kubernetes: a kubeconfig, or the pod where Airflow runs.

Kubeconfigs are read as client-go reads them: the client's own loader fills its settings, and leaves some fields out.
No error quotes what it has read, for that may be a key.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from airflow_gpu_provider.clouds.from_connection import FromConnection, check_header_text, extras_of
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.errors import CredentialsError, GpuError
from airflow_gpu_provider.parse_errors import kind_of, parsed, path_in_words, problem_of
from airflow_gpu_provider.untrusted import NotParsed


class Kubeconfig(NamedTuple):
    """The current context's entries of a kubeconfig, and the folder that the user's paths are relative to."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    folder: Path


_IN_CLUSTER = Kubeconfig({}, {}, Path())


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
        kubeconfig = _load(extras_of(conn_id), settings, context, conn_id)
        certificates: dict[str, Any] = {
            "ca_data": _base64_of(settings.ssl_ca_cert),
            "client_certificate_data": _base64_of(settings.cert_file),
            "client_key_data": _base64_of(settings.key_file),
        }
    except GpuError:
        raise
    except Exception as error:  # noqa: BLE001 - an auth-provider's library raises errors of its own
        raise CredentialsError(
            f"Airflow connection {conn_id} does not configure access to a cluster: {_problem_of(error)}.",
            "Correct its kubeconfig (kube_config_path or kube_config), or set in_cluster where Airflow runs in the"
            " cluster.",
            connection=conn_id,
        ) from None
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


def _load(extras: dict[str, Any], settings: Any, context: str | None, conn_id: str) -> Kubeconfig:
    from kubernetes import config
    from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    context = context or extras.get("cluster_context") or None
    if extras.get("in_cluster"):
        config.load_incluster_config(client_configuration=settings)
        return _IN_CLUSTER
    if path := extras.get("kube_config_path"):
        return load_file(path, settings, context, conn_id)
    if kubeconfig := extras.get("kube_config"):
        import yaml

        entries = parsed(yaml.safe_load, kubeconfig) if isinstance(kubeconfig, str) else kubeconfig
        return load_entries(entries, settings, context, conn_id)
    try:
        config.load_incluster_config(client_configuration=settings)
        return _IN_CLUSTER
    except config.ConfigException:
        return load_file(KUBE_CONFIG_DEFAULT_LOCATION, settings, context, conn_id)


def _problem_of(error: Exception) -> str:
    """Return what is wrong with a kubeconfig, in the words of the loader or of an auth-provider's library.

    The loader names entries, whose names are texts by then, and files; google.auth files and environment variables.
    """
    from kubernetes.config import ConfigException

    is_known = isinstance(error, ConfigException) or type(error).__module__.startswith("google.auth.")
    if not is_known:
        return problem_of(error).rstrip(".")
    what, no_file, path = str(error).partition("File does not exist: ")
    return " ".join(f"{what}{no_file}{path_in_words(path) if no_file else ''}".split()).rstrip(".")


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
        scheme, is_scheme, _ = proxy.partition("://")  # without one, it may begin with a login
        what = f"has a proxy-url of the scheme {scheme}" if is_scheme else "has a proxy-url without a scheme"
        fix = "Give it an HTTP proxy: others are not supported."
    elif proxy and not _is_url(proxy):
        what, fix = "has a proxy-url that is no URL", "Correct the proxy-url of the kubeconfig's cluster."
    elif not _is_address(settings.host):
        what = "has a server that is not an address of the form https://HOST:PORT"
        fix = "Correct the server of the kubeconfig's cluster; a login or a query in it is not supported."
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
    """Raise CredentialsError about what shows the API server nothing, or nothing whole: it may be being renewed.

    And about a token that would go over the network as it is.
    """
    if access.token is not None and _is_unencrypted(access.server):
        raise CredentialsError(
            f"Airflow connection {conn_id} has a token for {access.server}, where it would travel unencrypted.",
            "Give the kubeconfig's cluster an https:// server, or take the token out.",
            connection=conn_id,
        )
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
            f"Airflow connection {conn_id} has incomplete certificates, or ones that do not match its key:"
            f" {problem_of(error)}.",
            "If they are being renewed, the next attempt reads them again; otherwise correct them.",
            connection=conn_id,
        ) from None


def _is_url(address: str | None) -> bool:
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url

    try:
        return not address or bool(parse_url(address).host)
    except LocationParseError:
        return False


def _is_address(server: str) -> bool:
    """Return True for HTTP or HTTPS without a login, which errors would quote, and without a query.

    The clients take what has no scheme for HTTP, and send a token there.
    """
    try:
        url = urlsplit(server)
        is_whole = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        return False
    return is_whole and url.scheme in ("http", "https") and "@" not in url.netloc and not url.query + url.fragment


def _is_unencrypted(server: str) -> bool:
    """Return True for HTTP to another machine; on this one it is usual, as with `kubectl proxy`."""
    url = urlsplit(server)
    try:
        is_here = url.hostname == "localhost" or ip_address(url.hostname or "").is_loopback
    except ValueError:
        is_here = False
    return url.scheme == "http" and not is_here


def _token(kubeconfig: Kubeconfig, settings: Any, conn_id: str) -> Callable[[], str] | None:
    """Return what makes a token: a file of one is read each time, and a kubeconfig's own plugin asked again."""

    def token() -> str:
        # The name depends on the client's version; the hook that renews the token runs in either case.
        value = settings.get_api_key_with_prefix("authorization") or settings.api_key.get("BearerToken", "")
        found = str(value).removeprefix("Bearer ").removeprefix("bearer ").strip()
        return check_header_text(found, "token", conn_id)

    if path := kubeconfig.user.get("tokenFile"):
        return partial(_read_token, kubeconfig.folder / path, conn_id, otherwise=kubeconfig.user.get("token") or "")
    return token if token() else None


def _read_token(file: Path, conn_id: str, *, otherwise: str) -> str:
    try:
        token, why = file.read_text().strip(), "it is empty"
    except (OSError, ValueError) as error:
        token, why = otherwise, problem_of(error)
    if not token:
        raise CredentialsError(
            f"Airflow connection {conn_id} has the tokenFile {path_in_words(file)}, which has no token: {why}.",
            "See to what writes it.",
            connection=conn_id,
        )
    return check_header_text(token, "token", conn_id)


def _base64_of(path: str | None) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode() if path else ""


# -- kubeconfigs -------------------------------------------------------------------------------------------------


def load_file(path: str, settings: Any, context: str | None, conn_id: str) -> Kubeconfig:
    from kubernetes.config.kube_config import KubeConfigMerger

    if not any(Path(each).expanduser().exists() for each in path.split(os.pathsep)):
        raise NotParsed(f"there is no file {path_in_words(path)}")
    merged = KubeConfigMerger(path)
    return load_entries(merged.config, settings, context, conn_id, config_persister=merged.save_changes)


def load_entries(source: Any, settings: Any, context: str | None, conn_id: str, **options: Any) -> Kubeconfig:
    """Load a kubeconfig into the client's settings, which runs its exec plugin; return what these leave out as well."""
    from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader

    _tidy(source)
    loader = KubeConfigLoader(source, active_context=context, config_base_path=None, **options)
    node = source if isinstance(source, ConfigNode) else ConfigNode("kubeconfig", source)
    names = loader.current_context["context"]
    cluster = node["clusters"].get_with_name(names["cluster"])["cluster"]
    user = node["users"].get_with_name(names["user"])["user"] if names.get("user") else ConfigNode("user", {})
    _check_runs_nothing_that_may_not(user.value, conn_id)
    loader.load_and_set(settings)
    return Kubeconfig(cluster.value, user.value, Path(user.path).parent if user.path else Path())


def _check_runs_nothing_that_may_not(user: Mapping[str, Any], conn_id: str) -> None:
    """Raise CredentialsError about a command that the client would run, where the configuration forbids that.

    client-go's exec plugins, and `cmd-path` of the former auth-provider gcp.
    """
    from airflow.providers.common.compat.sdk import conf

    provider = (user.get("auth-provider") or {}).get("config") or {}
    command = (user.get("exec") or {}).get("command") or provider.get("cmd-path")
    if command and not conf.getboolean("gpu_provider", "exec_plugins", fallback=True):
        raise CredentialsError(
            f"Airflow connection {conn_id}: its kubeconfig runs {command}, and [gpu_provider] exec_plugins is False.",
            "Give the kubeconfig a token, a tokenFile or a certificate, or set exec_plugins to True.",
            connection=conn_id,
        )


# The fields' types as client-go has them: k8s.io/client-go/tools/clientcmd/api/v1.
_TEXTS = frozenset(
    (
        *("server", "tls-server-name", "certificate-authority", "certificate-authority-data", "proxy-url"),
        *("client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile"),
        *("as", "as-uid", "username", "password", "name", "cluster", "user", "namespace"),
    )
)
_OBJECTS = frozenset(("exec", "auth-provider"))


def _tidy(source: Any) -> None:
    """Leave out the fields of a kubeconfig's clusters and users that are null: the client's loader takes none.

    Raises:
        NotParsed: A field has another type than its own.
    """
    entries = _checked(dict, getattr(source, "value", source), "it")
    _checked(str, entries.get("current-context") or "", "current-context")
    for plural, kind in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
        for number, each in enumerate(_checked(list, entries.get(plural) or [], plural)):
            at = f"{plural}[{number}]"
            entry = _checked(dict, getattr(each, "value", each), at)
            if entry is not each:  # in a merged one, each says from which file it is, and has its own text for a name
                each.name = at
            _checked(str, entry.get("name") or "", f"{at}.name")
            fields = _checked(dict, entry.get(kind) or {}, f"{at}.{kind}")
            entry[kind] = {name: value for name, value in fields.items() if value is not None}
            for name, value in entry[kind].items():
                wanted = str if name in _TEXTS else dict if name in _OBJECTS else object
                _checked(wanted, value, f"{at}.{kind}.{name}")


def _checked(kind: type, value: Any, at: str) -> Any:
    if not isinstance(value, kind):
        raise NotParsed(f"{at} is {kind_of(value)}, not {kind_of(kind())}")
    return value
