"""The credentials of a sandbox and of the Airflow over it, and where any of them is written down."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import yaml
from cryptography.fernet import Fernet, InvalidToken

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_home import AirflowHome

Patterns = Mapping[str, re.Pattern[bytes]]

# Of a key in PEM, and of one in base64, as a kubeconfig has it; by the line in the middle, where all of them differ.
_PEM_LINES = re.compile(r"^[A-Za-z0-9+/=]{40,}$", re.MULTILINE)
_BY_FORM = {
    "a bearer token of EKS": rb"k8s-aws-v1\.[\w-]{20}",
    "a presigned URL of AWS": rb"X-Amz-Signature=\w{20}",
    "what a presigned URL is signed over": rb"GetCallerIdentity[^\n]{0,200}X-Amz-Credential",
    "an access token of Google's": rb"ya29\.[\w-]{10}",
    "a token of a service account": rb"eyJhbGciOiJSUzI1NiIs[\w-]{20}",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY",
    # Nor one in base64; certificates and public keys may be there.
    "a private key in base64": rb"LS0tLS1CRUdJTiB(?!DRVJU|QVUJM)",
}


def patterns(home: AirflowHome, sandbox: Sandbox) -> Patterns:
    """What none but its holder should read: by value where the sandbox knows it, by form where it is made anew."""
    values = {name: text for name, text in home.environment.items() if name in _OF_AIRFLOW}
    values |= {name: text for name, text in sandbox.env().items() if name in _OF_SANDBOX}
    for user in yaml.safe_load(sandbox.kubeconfig.read_text())["users"]:
        key = user["user"]["client-key-data"]
        values["the kubeconfig's client key"] = _middle(base64.b64decode(key).decode())
        values["the kubeconfig's client key in base64"] = key[60:120]
    if sandbox.platform == "gke":
        values["the service account's key"] = _middle(sandbox.google.keyfile()["private_key"])
    else:
        values["the AWS secret key"] = sandbox.aws.access_key.secret_access_key
    by_value = {name: re.compile(re.escape(text.encode())) for name, text in values.items()}
    return by_value | {name: re.compile(text) for name, text in _BY_FORM.items()}


_OF_AIRFLOW = ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET")
_OF_SANDBOX = ("AWS_SECRET_ACCESS_KEY", "GPU_SANDBOX_TOKEN")


def _middle(pem: str) -> str:
    lines = _PEM_LINES.findall(pem)
    return str(lines[len(lines) // 2])


def in_logs(home: AirflowHome, secrets: Patterns) -> list[str]:
    """Every file of the log folder that has one of them, tasks' and components' alike."""
    files = [path for path in (home.home / "logs").rglob("*") if path.is_file()]
    assert files, "nothing was logged"
    return [hit for path in files for hit in _hits(str(path.relative_to(home.home)), path.read_bytes(), secrets)]


def in_database(home: AirflowHome, secrets: Patterns) -> list[str]:
    """Every cell of the metadata database that has one of them, decrypted and unpacked."""
    with closing(sqlite3.connect(f"file:{home.home}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
        database.text_factory = bytes
        tables = [row[0].decode() for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [hit for table in tables for hit in _in_table(home, database, table, secrets)]


def _in_table(home: AirflowHome, database: sqlite3.Connection, table: str, secrets: Patterns) -> Iterator[str]:
    rows = database.execute(f'SELECT * FROM "{table}"')
    columns = [column[0] for column in rows.description]
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if isinstance(cell, bytes):
                yield from _hits(f"{table}.{column}", _plain(home, cell), secrets)


def _plain(home: AirflowHome, cell: bytes) -> bytes:
    if cell.startswith(b"gAAAA"):
        try:
            return Fernet(home.environment["AIRFLOW__CORE__FERNET_KEY"]).decrypt(cell)
        except InvalidToken:
            return cell
    try:
        return zlib.decompress(cell)
    except zlib.error:
        return cell


def _hits(where: str, text: bytes, secrets: Patterns) -> Iterator[str]:
    for name, pattern in secrets.items():
        if found := pattern.search(text):
            around = text[max(0, found.start() - 300) : found.start()].decode(errors="replace")
            yield f"{where}: {name}, after {around!r}"


class TriggerRows:
    """The triggers' rows, decrypted. They go as soon as their triggers are done: the database itself keeps a copy."""

    def __init__(self, home: AirflowHome) -> None:
        self._home = home
        with closing(sqlite3.connect(home.home / "airflow.db", timeout=60)) as database:
            database.executescript("""
                CREATE TABLE seen_trigger (classpath TEXT, kwargs TEXT);
                CREATE TRIGGER see_trigger AFTER INSERT ON "trigger"
                BEGIN INSERT INTO seen_trigger VALUES (NEW.classpath, NEW.kwargs); END;
            """)

    def seen(self) -> dict[str, bytes]:
        """Their arguments by class, joined."""
        seen: dict[str, bytes] = {}
        with closing(sqlite3.connect(f"file:{self._home.home}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
            for path, kwargs in database.execute("SELECT classpath, kwargs FROM seen_trigger"):
                name = path.rpartition(".")[2]
                seen[name] = seen.get(name, b"") + _plain(self._home, kwargs.encode())
        return seen

    def hits(self, secrets: Patterns) -> list[str]:
        return [hit for name, text in self.seen().items() for hit in _hits(f"the row of {name}", text, secrets)]


def connection_with_kubeconfig(sandbox: Sandbox) -> dict[str, Any]:
    """An Airflow connection that holds the kubeconfig itself, client key included."""
    kubeconfig = yaml.safe_load(sandbox.kubeconfig.read_text())
    return {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kubeconfig)}}
