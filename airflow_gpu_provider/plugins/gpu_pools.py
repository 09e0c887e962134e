"""Browse > GPU pools, and a tab on each DAG run, in Airflow's web UI: a script bundle, and the app that serves it.

The page calls Airflow's public REST API with its user's own session, so this module reads and writes nothing. Every
Airflow process loads plugins, including tasks: what only the API server needs is created on demand.
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
    """Return the bundle's URL, relative to Airflow's base URL; it changes with the contents.

    Raises:
        FileNotFoundError: The package was installed without it.
    """
    version = sha256((static / BUNDLE).read_bytes()).hexdigest()[:12]
    return f"{PREFIX.removeprefix('/')}/static/{BUNDLE}?v={version}"


def _or_none(make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the result, or nothing on an error: Airflow's API server starts in any case."""
    from airflow.providers.common.compat.sdk import conf

    try:
        return make() if conf.getboolean("gpu_provider", "ui", fallback=True) else []
    except Exception:  # any exception would stop the API server
        log.exception("The page GPU pools is left out of the web UI, because it could not be loaded")
        return []


def _react_apps() -> list[dict[str, Any]]:
    app = {"bundle_url": bundle_url(), "url_route": "gpu_pools"}
    return [
        {"name": "GPU pools", "destination": "nav", "category": "browse", **app},
        {"name": "GPU nodes", "destination": "dag_run", **app, "url_route": "gpu_nodes"},
    ]


def _fastapi_apps() -> list[dict[str, Any]]:
    from fastapi import FastAPI
    from fastapi.staticfiles import StaticFiles

    app = FastAPI(title="GPU pools", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))
    return [{"name": "GPU pools", "app": app, "url_prefix": PREFIX}]
