"""The Airflow connection by which an IAM user of a sandbox's account is had."""

from __future__ import annotations

from typing import Any

from gpu_sandbox.aws import AccessKey
from gpu_sandbox.sandbox import Sandbox


def connection(sandbox: Sandbox, key: AccessKey, **extra: Any) -> dict[str, Any]:
    """Return the connection; `extra` is added to its own, by which clients of STS, too, find the sandbox."""
    endpoint = sandbox.aws.endpoint_url
    config = {"service_config": {"sts": {"endpoint_url": endpoint}}}
    return {
        "conn_type": "aws",
        "login": key.access_key_id,
        "password": key.secret_access_key,
        "extra": {"region_name": sandbox.region, "endpoint_url": endpoint, **config, **extra},
    }
