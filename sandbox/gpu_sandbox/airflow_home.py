"""A complete private Airflow: a home folder, and the components that run from it.

Scheduler, DAG processor, triggerer and API server are the real ones, each a process of its own, with the
LocalExecutor, and SQLite unless they are given another database. Only intervals are tuned, so that a DAG file is found,
and a run scheduled, in seconds rather than in a minute.

Run as a program, this file makes the database that all of them begin with, if there is none yet.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.metadata
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

from gpu_sandbox import airflow_component, airflow_processes, google_lookups
from gpu_sandbox.airflow_api import PATIENCE, AirflowApi, AirflowApiError
from gpu_sandbox.cache import cache_folder
from gpu_sandbox.ports import free_port

Component = Literal["scheduler", "dag-processor", "triggerer", "api-server"]

COMMANDS: Mapping[Component, tuple[str, ...]] = {
    # The slow one first. Logs are read from the files, so no component has to serve its own.
    "api-server": ("api-server", "--host", "127.0.0.1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# The processes forked by these run DAG files repeatedly.
FORKING: frozenset[Component] = frozenset({"scheduler", "dag-processor"})
# SQLite has one writer at a time. The API server's event loop may wait for a lock that one of its own requests holds
# and gives back through that loop: it must give up long before the others do, or these die of it (seen with 3.3.2).
SECONDS_FOR_LOCK = 30
SECONDS_FOR_LOCK_IN_API_SERVER = 3
HEALTH_NAMES = ("metadatabase", "scheduler", "dag_processor", "triggerer")


class AirflowNotHealthy(Exception):
    """A component exited or was not ready in time; the message has the end of its log."""


class AirflowHome:
    """Airflow's components over one AIRFLOW_HOME. Use as a context manager, or start() and stop().

    Args:
        home: A folder for this Airflow alone; created if missing, and kept when Airflow stops.
        dags_folder: Where the DAG files are.
        env: More environment for all components (and so for every task), such as a sandbox's.
        schedules: Whether DAGs also run on their schedules. Default False: only when they are triggered.
        parallelism: How many tasks run at once. Default 4.
        database: Its `sql_alchemy_conn`, a server's that `airflow db migrate` has prepared. Default: a SQLite file in
            its home.
        inherited: What each task, and each parse of a DAG file, finds imported already: modules, or names in them after
            a colon ("package:Name").

    Attributes:
        url: The API server's address, and the web UI's; it asks for no log-in.
        api: A client of it.
        environment: With which `airflow` commands act on this Airflow.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        env: Mapping[str, str],
        *,
        schedules: bool = False,
        parallelism: int = 4,
        database: str | None = None,
        inherited: Sequence[str] = (),
    ) -> None:
        self.home = home.resolve()
        self._server = database
        self._inherited = ",".join(inherited)
        self.dags_folder = dags_folder.resolve()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = AirflowApi(self.url)
        self.environment = self._environment(env, schedules=schedules, parallelism=parallelism)
        self._processes: dict[Component, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> AirflowHome:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, timeout: float = PATIENCE) -> None:
        """Create the database, start every component and wait until all are healthy (`timeout` seconds)."""
        self.begin()
        self.wait_until_healthy(timeout=timeout)

    def begin(self) -> None:
        """start() without waiting, for a caller that has something else to start meanwhile."""
        self.prepare()
        if self._guard is None:
            self._start_guard()
        for component in COMMANDS:
            self._launch(component)

    def prepare(self) -> None:
        """Make the home's files, and start nothing: its `environment` is then good for `airflow` commands."""
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        if "GPU_SANDBOX_GOOGLE_ENDPOINT" in self.environment:
            google_lookups.switch_off_in_airflow(self.home)
        if self._server is None and not (self.home / "airflow.db").exists():
            shutil.copyfile(database_template(), self.home / "airflow.db")

    def stop(self) -> None:
        """End every process of this home, tasks included; raises if one survives."""
        self.api.close()
        left = airflow_processes.end_all(self.home)
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(timeout=PATIENCE)
            self._guard = None
        if left:
            raise AirflowNotHealthy(f"processes of {self.home} that cannot be ended: {left}")

    def wait_until_healthy(self, *, timeout: float = PATIENCE) -> None:
        """Wait until the API reports every component as healthy; raises as soon as one has exited."""
        deadline = time.monotonic() + timeout
        while not self._healthy():
            self.check()
            if time.monotonic() > deadline:
                logs = "\n".join(self._account(component, "still starts") for component in self._processes)
                raise AirflowNotHealthy(f"Airflow is not healthy after {timeout:g} s\n{logs}")
            time.sleep(0.2)

    def check(self) -> None:
        """Raise AirflowNotHealthy if a component has ended."""
        for component in COMMANDS:
            process = self._processes.get(component)
            if process is None or process.poll() is not None:
                how = "was ended" if process is None else f"ended with {process.returncode}"
                raise AirflowNotHealthy(self._account(component, how))

    def ended(self) -> list[Component]:
        """The components that have exited by themselves."""
        return [component for component, process in list(self._processes.items()) if process.poll() is not None]

    def revive(self, tell: Callable[[Component, str], object]) -> None:
        """Start again what has ended by itself, as what runs an installation does.

        tell: gets each component first, and what happened to it, with the end of its log.
        """
        ended = self.ended()
        for component in ended:
            tell(component, self._account(component, "ended by itself"))
            self._launch(component)
        if ended:
            self.wait_until_healthy()

    def kill(
        self,
        component: Component,
        signal_number: signal.Signals = signal.SIGKILL,
        *,
        with_children: bool = False,
    ) -> None:
        """Send a signal to a component's own process. SIGKILL and SIGTERM: return when it has ended.

        Its children (the triggerer's runner, the scheduler's workers and their tasks) are left as that leaves
        them, or get the signal too: SIGCONT is mostly meant for all.
        """
        process = self._processes[component]
        airflow_processes.send(self.pids(component, with_children=with_children), signal_number)
        if signal_number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(timeout=PATIENCE)
            del self._processes[component]

    def suspend(self, component: Component, *, with_children: bool = False) -> None:
        """Send SIGSTOP to a component's own process, or to its children too; kill(component, SIGCONT) lets it go on.

        With SQLite it comes between two of its writes: one lock for all writers would stand still with it.
        """
        if self._server is not None:
            airflow_processes.stop_all(self.pids(component, with_children=with_children))
            return
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=PATIENCE, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            airflow_processes.stop_all(self.pids(component, with_children=with_children))
            database.execute("ROLLBACK")

    def kill_all(self) -> None:
        """Send SIGKILL to every process at once, tasks too, as in a power failure; `start` brings all back."""
        while alive := airflow_processes.processes_of(self.home):
            airflow_processes.send(alive, signal.SIGKILL)
            time.sleep(0.05)
        for process in self._processes.values():
            process.wait(timeout=PATIENCE)
        self._processes.clear()

    def restart(self, component: Component, *, timeout: float = PATIENCE) -> None:
        """Restart a component, ending it first if it runs, and wait until the API answers.

        For up to 30 s Airflow's health check cannot tell a component's new process from its old one's
        last heartbeat; where that matters, wait for what the component does.
        """
        if component in self._processes:
            self.kill(component, signal.SIGTERM)
        self._launch(component)
        self.wait_until_healthy(timeout=timeout)

    def pids(self, component: Component, *, with_children: bool = False) -> list[int]:
        """The id of a component's own process, and of those that it has started."""
        process = self._processes[component]
        return airflow_processes.session_of(process.pid) if with_children else [process.pid]

    def log_file(self, component: Component) -> Path:
        return self.home / "logs" / f"{component}.log"

    def _connection(self, seconds_for_lock: int) -> str:
        return self._server or f"sqlite:///{self.home}/airflow.db?timeout={seconds_for_lock}"

    def _launch(self, component: Component) -> None:
        forks = component in FORKING
        program = [airflow_component.__name__, self._inherited] if forks else ["airflow"]
        seconds = SECONDS_FOR_LOCK_IN_API_SERVER if component == "api-server" else SECONDS_FOR_LOCK
        database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._connection(seconds)}
        with self.log_file(component).open("ab") as log:
            self._processes[component] = subprocess.Popen(
                [sys.executable, "-m", *program, *COMMANDS[component]],
                env=self.environment | database,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _start_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", airflow_processes.__file__, str(self.home)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _healthy(self) -> bool:
        try:
            health = self.api.health()
            self.api.wake_execution_api()
        except AirflowApiError:
            return False
        return all(health.get(name) == "healthy" for name in HEALTH_NAMES)

    def _account(self, component: Component, what: str) -> str:
        log = self.log_file(component)
        end = log.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([f"{component} {what}; the end of {log}:", *(f"    {line}" for line in end)])

    def _environment(self, extra: Mapping[str, str], *, schedules: bool, parallelism: int) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
        settings: dict[str, dict[str, object]] = {
            "core": {
                "dags_folder": self.dags_folder,
                "executor": "LocalExecutor",
                "execution_api_server_url": f"{self.url}/execution/",
                "parallelism": parallelism,
                "load_examples": False,
                # By default a change within half a minute of the last is left for the next look at the file.
                "min_serialized_dag_update_interval": 0,
                "dags_are_paused_at_creation": False,
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "simple_auth_manager_all_admins": True,
                # The default queries the name server, which takes seconds if there is none.
                "hostname_callable": "socket.gethostname",
                # Reading a DAG file is seconds of pure CPU: on a busy machine, many seconds.
                "dagbag_import_timeout": 120,
            },
            "database": {"sql_alchemy_conn": self._connection(SECONDS_FOR_LOCK)},
            "api": {"port": self.port, "base_url": self.url, "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "scheduler": {"use_job_schedule": schedules, "scheduler_idle_sleep_time": 0.5},
            # A changed file is read within seconds, an unchanged one is left alone.
            "dag_processor": {
                "refresh_interval": 3,
                "bundle_refresh_check_interval": 2,
                "min_file_process_interval": 600,
                "dag_file_processor_timeout": 180,
            },
            # A worker that just misses its task's end checks again only after this time.
            # After the default, 5 s, it repeats the request, and a busy server has one more to answer.
            "workers": {"min_heartbeat_interval": 1, "execution_api_timeout": 30},
            "usage_data_collection": {"enabled": False},
            "logging": {"colored_console_log": False},
        }
        variables = {
            f"AIRFLOW__{section.upper()}__{option.upper()}": str(value)
            for section, options in settings.items()
            for option, value in options.items()
        }
        # SPT_NOENV: see airflow_processes.
        fixed = {"AIRFLOW_HOME": str(self.home), "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}
        return inherited | fixed | variables | dict(extra)


def python_path(folder: Path) -> str:
    """A PYTHONPATH, for `env`, with this folder before what this process's has."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def database_template() -> Path:
    """A SQLite file as `airflow db migrate` makes it, made once per Airflow version and user."""
    version = importlib.metadata.version("apache-airflow-core")
    key = hashlib.sha256(f"{version} {sys.version_info[:2]} wal".encode()).hexdigest()[:10]
    template = cache_folder() / f"airflow-{version}-{key}.db"
    with template.with_name(f"{template.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            _migrate(template)
    return template


def _migrate(template: Path) -> None:
    home = template.with_suffix(f".{os.getpid()}")
    home.mkdir()
    database = home / "airflow.db"
    try:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))
        }
        result = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=environment
            | {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise AirflowNotHealthy(f"airflow db migrate failed:\n{result.stdout}\n{result.stderr}")
        with sqlite3.connect(database) as connection:
            # Readers and one writer at once: five processes share the file. The mode stays with the file.
            connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        database.replace(template)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    database_template()
