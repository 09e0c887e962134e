"""Airflow's database, each time as `airflow db migrate` leaves it: SQLite in this process's memory, or PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_sandbox.airflow_home import database_template
from tests.postgresql import Postgresql

ON_POSTGRESQL = os.environ.get("DRY_NIGHTS_DATABASE", "sqlite") == "postgresql"
"""Whether the nights of this process keep their states in PostgreSQL."""

SETTINGS = {
    "AIRFLOW__API_AUTH__JWT_SECRET": "0" * 64,
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
}


class Database(ABC):
    """The only one of this process, whichever Airflow was configured before."""

    def __init__(self, home: Path, url: str) -> None:
        """Configure this process's Airflow, whose home is a folder that nothing is written to."""
        os.environ.update(SETTINGS | {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url})
        from airflow import settings

        settings.dispose_orm()
        settings.configure_vars()
        settings.configure_orm()

    def restore(self) -> Any:
        """Return a session on a database in which nothing has happened yet."""
        from airflow import settings

        settings.Session.remove()
        self._restore(settings.engine)
        return settings.Session()

    def echo(self, value: Any, column: Any) -> Any:
        """Return what the database gives back of a value that it takes as one of a column's type."""
        from airflow import settings
        from sqlalchemy import literal, select

        with settings.engine.connect() as connection:
            return connection.execute(select(literal(value, column))).scalar_one()

    def close(self) -> None:
        """Close its connections; there is nothing left of it for this process's end."""
        from airflow import settings

        settings.dispose_orm()

    @abstractmethod
    def _restore(self, engine: Any) -> None: ...


class InMemory(Database):
    """SQLite. Its sessions share one connection, so that none of them waits for another one's lock."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, "sqlite://")
        with closing(sqlite3.connect(database_template())) as template:
            self._template = sqlite3.connect(":memory:", check_same_thread=False)
            template.backup(self._template)

    def _restore(self, engine: Any) -> None:
        connection = engine.raw_connection()
        self._template.backup(connection.driver_connection)
        connection.close()


class OnServer(Database):
    """PostgreSQL, with as many connections as Airflow opens."""

    def __init__(self, home: Path, server: Postgresql) -> None:
        super().__init__(home, server.renew("airflow"))
        self._server = server

    def _restore(self, engine: Any) -> None:
        engine.dispose()
        self._server.renew("airflow")
