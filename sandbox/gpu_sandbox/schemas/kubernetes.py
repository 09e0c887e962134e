"""The API server's own schemas, held to each write of this package: by its audit log.

A server judges a write by every field of it where the write asks for that (fieldValidation=Strict), and refuses the
unknown ones. Its audit log says of each write whether it asked, and what came of it (kubernetes.io/docs/tasks/
debug/debug-cluster/audit).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

FOLDER_VARIABLE = "GPU_SANDBOX_SCHEMA_FINDINGS"
"""Names the folder into which findings go."""

WRITE = "Kubernetes write"
AUDIT_LOG = ".audit.jsonl"
_CLIENT = "airflow-gpu-provider/"
_WRITES = ("create", "update", "patch")
_REFUSED = ("strict decoding error", "field not declared in schema")


def judged_log() -> Path | None:
    """Return where another API server's audit log is to be, for it to be judged; None where nobody judges."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder, f"{secrets.token_hex(8)}{AUDIT_LOG}") if folder else None


def is_judged(event: Mapping[str, Any]) -> bool:
    """Return True if an audit event is of a write by this package: its clients say their name."""
    if event["stage"] != "ResponseComplete":
        return False
    return event["verb"] in _WRITES and str(event.get("userAgent", "")).startswith(_CLIENT)


def name_of(event: Mapping[str, Any]) -> str:
    """Return `patch nodes`, say."""
    target = event.get("objectRef", {})
    names = (target.get("resource", ""), target.get("subresource", ""))
    return f"{event['verb']} {'/'.join(filter(None, names))}"


def wrong_in_write(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a write."""
    validation = parse_qs(urlsplit(event["requestURI"]).query).get("fieldValidation")
    if validation != ["Strict"]:
        yield f"its fieldValidation is {validation}, not Strict"
    status = event.get("responseStatus", {})
    message = str(status.get("message", ""))
    if any(words in message for words in _REFUSED):
        yield message
