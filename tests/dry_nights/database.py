"""Airflow's database in this process's memory, each time as `airflow db migrate` leaves it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_sandbox.airflow_home import database_template

SETTINGS = {
    "AIRFLOW__API_AUTH__JWT_SECRET": "0" * 64,
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
}


class Database:
    """The only one of this process, whichever Airflow was configured before.

    Its sessions share one connection, so that none of them waits for another one's lock.
    """

    def __init__(self, home: Path) -> None:
        """Configure this process's Airflow, whose home is a folder that nothing is written to."""
        os.environ.update(SETTINGS | {"AIRFLOW_HOME": str(home)})
        from airflow import settings

        settings.dispose_orm()
        settings.configure_vars()
        settings.configure_orm()
        with closing(sqlite3.connect(database_template())) as template:
            self._template = sqlite3.connect(":memory:", check_same_thread=False)
            template.backup(self._template)

    def restore(self) -> Any:
        """Return a session on a database in which nothing has happened yet."""
        from airflow import settings

        settings.Session.remove()
        connection = settings.engine.raw_connection()
        self._template.backup(connection.driver_connection)
        connection.close()
        return settings.Session()
