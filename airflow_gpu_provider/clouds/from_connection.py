"""FromConnection: what an Airflow connection gives, read once for all calls of a client, and again when it was refused.

A key that was rotated, a token file that was renewed and a login that has expired are in the connection, or where it
points to, while a process still has the old ones: a triggerer for weeks. Reading is left to threads: it asks Airflow.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError
from airflow_gpu_provider.parse_errors import kind_of, parsed
from airflow_gpu_provider.untrusted import NotParsed

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

AGAIN_AFTER = 5.0
"""Seconds within which the connection is not read again twice: many waits may be refused at the same time."""


class FromConnection(Generic[T]):
    """What one client has from its Airflow connection; thread-safe.

    Its lock is reentrant: a signal handler, which may interrupt a reading, makes calls too.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.RLock()
        self._held: T | None = None
        self._again_at = float("-inf")

    def get(self) -> T:
        """Return what the connection held when it was last read; errors as `read` raises them."""
        if (held := self._held) is not None:  # without the lock: others may be reading
            return held
        with self._lock:
            if self._held is None:
                self._held = self._read()
            return self._held

    def read_again(self, refused: T | None = None) -> T:
        """Return what the connection holds now, after a refusal of what it held before.

        It is not read where another call has read it since `refused` was read, nor twice within AGAIN_AFTER. What it
        gave stays where it cannot be read.
        """
        with self._lock:
            held = self.get()
            is_known = refused is not None and refused is not held
            if not is_known and time.monotonic() - self._again_at >= AGAIN_AFTER:
                self._again_at = time.monotonic()
                held = self._held = self._read()
            return held

    def call(self, do: Callable[[T], R]) -> R:
        """Return what `do` makes of it; where the credentials are refused, what it makes of what is held now.

        Raises:
            CredentialsError: These are refused as well, or were read a moment ago.
        """
        held = self.get()
        try:
            return do(held)
        except CredentialsError:
            again = self.read_again(held)
            if again is held:
                raise
        return do(again)


_HEADER_TEXT = re.compile(r"[\x20-\x7e]*")


def check_header_text(credential: str, name: str, conn_id: str | None) -> str:
    """Return a credential that goes into an HTTP header; `name` is the connection's word for it.

    Raises:
        CredentialsError: It has a line break or another character that no header has (RFC 9110, "Field Values"); HTTP
            libraries quote it in their own errors.
    """
    if not _HEADER_TEXT.fullmatch(credential):
        raise CredentialsError(
            f"Airflow connection {conn_id} has a {name} with a line break, or a character that is not ASCII.",
            "Put it there again, in one line.",
            connection=conn_id,
        )
    return credential


def with_readable_extra(connection: C) -> C:
    """Return a connection of Airflow whose extra is a JSON object, or empty.

    Airflow itself takes any other for empty, and its hooks then find the worker's own credentials.

    Raises:
        CredentialsError: It is none; the message does not have its text.
    """
    of_airflow: Any = connection
    try:
        extra = parsed(json.loads, of_airflow.extra) if of_airflow.extra else {}
        problem = "" if isinstance(extra, dict) else f"it is {kind_of(extra)}"
    except NotParsed as error:
        problem = str(error)
    if problem:
        raise CredentialsError(
            f"The extra of Airflow connection {of_airflow.conn_id} is not a JSON object: {problem}.",
            "Correct the connection's extra.",
            connection=of_airflow.conn_id,
        )
    return connection


def extras_of(conn_id: str) -> dict[str, Any]:
    """Return the extra of a connection of type kubernetes.

    Raises:
        ConnectionNotFound: There is no such connection.
        CredentialsError: Its extra is no JSON object.
    """
    # Not by KubernetesHook: without a kubernetes_default it uses whatever access to a cluster the worker has.
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    prefix = "extra__kubernetes__"  # of connections that were made before Airflow 2.3
    try:
        extras = with_readable_extra(BaseHook.get_connection(conn_id)).extra_dejson
    except AirflowNotFoundException as error:
        raise ConnectionNotFound.named(conn_id, "kubernetes_conn_id") from error
    return {name.removeprefix(prefix): value for name, value in extras.items()}
