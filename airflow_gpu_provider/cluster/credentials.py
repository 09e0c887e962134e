"""Credentials: what one client of a cluster shows to the API server, for all requests that share the client.

A token is made again before it runs out. What the API server refuses is found again, where it came from, by the first
request that is refused; the others that were refused with the same go on with what that one found.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.access import ClusterAccess

TOKEN_MAX_AGE = 600.0
"""Seconds after which a token is made again; EKS's live 900."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Shown:
    """What a request shows: the access with its certificate, and the token; empty for none."""

    access: ClusterAccess
    token: str
    made_at: float

    @property
    def header(self) -> str:
        """The Authorization header; empty for none."""
        return f"Bearer {self.token}" if self.token else ""


class Credentials:
    """The credentials of one client; thread-safe.

    Its lock is reentrant: a signal handler, which may interrupt their making, makes requests too.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._lock = threading.RLock()
        self._shown: Shown | None = None

    @property
    def fresh(self) -> Shown | None:
        """What the next request shows; None where `get` has to make it, which may take a while. Never blocks."""
        shown = self._shown
        if shown is None or (shown.access.token is not None and time.monotonic() - shown.made_at > TOKEN_MAX_AGE):
            return None
        return shown

    def get(self) -> Shown:
        """Return what the next request shows.

        Raises:
            GpuError: No token can be made.
        """
        with self._lock:
            return self.fresh or self._make(self._access)

    def after(self, refused: Shown) -> Shown | None:
        """Return what to show now that `refused` was refused; None where there is nothing else.

        Raises:
            GpuError: The Airflow connection cannot be read, or gives no credentials.
        """
        with self._lock:
            if self._shown is not refused:
                return self._shown
            self._access = refused.access.found_again()
            if self._access is refused.access and self._access.token is None:
                return None
            return self._make(self._access)

    def _make(self, access: ClusterAccess) -> Shown:
        token = access.token() if access.token is not None else ""
        self._shown = Shown(access=access, token=token, made_at=time.monotonic())
        return self._shown
