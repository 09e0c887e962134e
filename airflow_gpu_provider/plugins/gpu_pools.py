"""Browse > GPU pools, and a tab on each DAG run, in Airflow's web UI: a bundle of scripts, and what serves it.

The page asks Airflow's public REST API with its user's own session, so nothing here reads or writes anything. Every
process of Airflow loads plugins, tasks too: what only the API server needs is made when it asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
BUNDLE = "gpu-pools.js"
PREFIX = "/gpu-pools"


class GpuPoolsPlugin(AirflowPlugin):
    """The page and the tab; `[gpu_provider] ui = False` leaves both out."""

    name = "gpu_pools"

    @cached_property
    def react_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return _or_none(_react_apps)

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return _or_none(_fastapi_apps)


def bundle_url(static: Path = STATIC) -> str:
    """Return where the browser finds the bundle, relative to Airflow's base URL; other contents have another address.

    Raises:
        FileNotFoundError: The package was installed without it.
    """
    version = sha256((static / BUNDLE).read_bytes()).hexdigest()[:12]
    return f"{PREFIX.removeprefix('/')}/static/{BUNDLE}?v={version}"


def _or_none(make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what is made; without it Airflow's API server starts all the same."""
    try:
        return make() if _is_on() else []
    except Exception:  # whatever it is, the API server would end with it
        log.exception("The page GPU pools is left out of the web UI, because it could not be loaded")
        return []


def _is_on() -> bool:
    from airflow.providers.common.compat.sdk import conf

    return bool(conf.getboolean("gpu_provider", "ui", fallback=True))


def _react_apps() -> list[dict[str, Any]]:
    app = {"bundle_url": bundle_url(), "url_route": "gpu_pools"}
    return [
        {"name": "GPU pools", "destination": "nav", "category": "browse", **app},
        {"name": "GPU nodes", "destination": "dag_run", **app, "url_route": "gpu_nodes"},
    ]


def _fastapi_apps() -> list[dict[str, Any]]:
    from fastapi import FastAPI
    from starlette.staticfiles import StaticFiles

    app = FastAPI(title="GPU pools", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))
    return [{"name": "GPU pools", "app": app, "url_prefix": PREFIX}]
