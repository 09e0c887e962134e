"""Keeps google-auth on loopback: it looks up an account's allowed locations at Google, whatever endpoints are given.

Each credentials object of a service account asks `iamcredentials.googleapis.com/.../allowedLocations` in a background
thread, with retries (google-auth 2.62, google/auth/_regional_access_boundary_utils.py). No setting switches that off or
names another address: GOOGLE_AUTH_TRUST_BOUNDARY_ENABLED "is deprecated and no longer has any effect"
(google/auth/environment_vars.py).
"""

from __future__ import annotations

from pathlib import Path

_SETTINGS = f'''"""Written by gpu_sandbox.AirflowHome; every component of Airflow imports it."""
from {__name__} import switch_off

switch_off()
__all__ = []
'''


def switch_off() -> None:
    """Have no credentials of this process look anything up, from now on."""
    from google.auth import credentials

    # Earlier releases look nothing up, and have no such class.
    looking = getattr(credentials, "CredentialsWithRegionalAccessBoundary", None)
    if looking is not None:
        looking._is_regional_access_boundary_lookup_required = lambda self: False


def switch_off_in_airflow(home: Path) -> None:
    """The same for all processes of an Airflow with this home, by its `airflow_local_settings`, unless it has some."""
    settings = home / "config" / "airflow_local_settings.py"
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(_SETTINGS)
