"""The environment of a container: values, field and resource references, ConfigMaps, Secrets and $(VAR) expansion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_sandbox.nodes import quantities
from gpu_sandbox.nodes.errors import NodeAgentError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ConfigError(NodeAgentError):
    """The container cannot be configured: what it refers to is not there."""


Lookup = Callable[[str, str], Awaitable[Mapping[str, bytes] | None]]
"""(``configmap`` or ``secret``, name) -> its data, None when there is no such object in the pod's namespace."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What references may ask about the pod's surroundings."""

    pod_ip: str
    host_ip: str
    node_name: str
    node_allocatable: Mapping[str, str]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` where NAME is known; ``$$(NAME)`` stays as ``$(NAME)``."""
    parts: list[str] = []
    position = 0
    while (dollar := text.find("$", position)) >= 0 and dollar + 1 < len(text):
        parts.append(text[position:dollar])
        following = text[dollar + 1]
        if following == "$":
            parts.append("$")
            position = dollar + 2
        elif following == "(" and (end := text.find(")", dollar)) >= 0:
            name = text[dollar + 2 : end]
            parts.append(variables.get(name, text[dollar : end + 1]))
            position = end + 1
        else:
            parts.append("$")
            position = dollar + 1
    return "".join(parts) + text[position:]


def service_variables(host: str, port: int) -> dict[str, str]:
    """What the kubelet tells every container about the API server."""
    address = f"tcp://{host}:{port}"
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": address,
        f"KUBERNETES_PORT_{port}_TCP": address,
        f"KUBERNETES_PORT_{port}_TCP_PROTO": "tcp",
        f"KUBERNETES_PORT_{port}_TCP_PORT": str(port),
        f"KUBERNETES_PORT_{port}_TCP_ADDR": host,
    }


async def build(
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    *,
    facts: Facts,
    services: Mapping[str, str],
    lookup: Lookup,
) -> dict[str, str]:
    """The variables that the pod's spec asks for. Raises ConfigError for a reference to what is not there."""
    result: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        result |= await _from_object(source, lookup)
    for variable in container.get("env") or ():
        if "valueFrom" not in variable:
            result[variable["name"]] = expand(variable.get("value") or "", {**services, **result})
            continue
        value = await _referenced(variable["valueFrom"], container, pod, facts, lookup)
        if value is not None:
            result[variable["name"]] = value
    return {**services, **result}


def field_value(path: str, pod: Mapping[str, Any], facts: Facts) -> str:
    """What a fieldRef's fieldPath stands for. Raises ConfigError for one that pods do not have."""
    metadata = pod["metadata"]
    for group in ("labels", "annotations"):
        if path.startswith(f"metadata.{group}['") and path.endswith("']"):
            return str((metadata.get(group) or {}).get(path[len(f"metadata.{group}['") : -2], ""))
        if path == f"metadata.{group}":
            items = sorted((metadata.get(group) or {}).items())
            return "".join(f'{key}="{_quoted(value)}"\n' for key, value in items)
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(values[path])


def resource_value(reference: Mapping[str, Any], container: Mapping[str, Any], facts: Facts) -> str:
    """What a resourceFieldRef stands for; an unset limit is what the node has."""
    kind, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(kind) or {}).get(resource)
    if amount is None:
        amount = facts.node_allocatable.get(resource, "0") if kind == "limits" else "0"
    return str(quantities.divided(amount, reference.get("divisor") or "1"))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def _from_object(source: Mapping[str, Any], lookup: Lookup) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for kind in ("configMap", "secret"):
        reference = source.get(f"{kind}Ref")
        if reference is None:
            continue
        data = await lookup(kind.lower(), reference["name"])
        if data is None:
            if reference.get("optional"):
                return {}
            raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        return {prefix + key: value.decode(errors="replace") for key, value in data.items()}
    return {}


async def _referenced(
    source: Mapping[str, Any],
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    facts: Facts,
    lookup: Lookup,
) -> str | None:
    if field := source.get("fieldRef"):
        return field_value(field["fieldPath"], pod, facts)
    if resource := source.get("resourceFieldRef"):
        return resource_value(resource, _named_container(resource, container, pod), facts)
    for kind, word in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if reference := source.get(f"{kind}KeyRef"):
            return await _key(kind.lower(), word, reference, pod, lookup)
    raise ConfigError(f"unsupported env source: {', '.join(source)}")


async def _key(
    kind: str, word: str, reference: Mapping[str, Any], pod: Mapping[str, Any], lookup: Lookup
) -> str | None:
    name, key = reference["name"], reference["key"]
    data = await lookup(kind, name)
    if data is not None and key in data:
        return data[key].decode(errors="replace")
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind} "{name}" not found')
    raise ConfigError(f"couldn't find key {key} in {word} {pod['metadata']['namespace']}/{name}")


def _named_container(
    reference: Mapping[str, Any], container: Mapping[str, Any], pod: Mapping[str, Any]
) -> Mapping[str, Any]:
    name = reference.get("containerName")
    for candidate in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]:
        if candidate["name"] == name:
            return dict(candidate)
    return container
