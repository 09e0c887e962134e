"""access_of: how a test reaches a sandbox's API server, by the kubeconfig that the sandbox writes."""

from __future__ import annotations

from pathlib import Path

import yaml

from airflow_gpu_provider.cluster.api.access import ClusterAccess


def access_of(kubeconfig: str | Path) -> ClusterAccess:
    """Return what a kubeconfig's current context names; its user has a token or a certificate, in the file itself."""
    config = yaml.safe_load(Path(kubeconfig).read_text())
    parts = {kind: {each["name"]: each[kind] for each in config[f"{kind}s"]} for kind in ("context", "cluster", "user")}
    context = parts["context"][config["current-context"]]
    cluster, user = parts["cluster"][context["cluster"]], parts["user"][context["user"]]
    token = user.get("token")
    return ClusterAccess(
        server=cluster["server"],
        ca_data=cluster["certificate-authority-data"],
        token=(lambda: str(token)) if token else None,
        client_certificate_data=user.get("client-certificate-data", ""),
        client_key_data=user.get("client-key-data", ""),
    )
