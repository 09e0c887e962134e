"""One Airflow and one browser for all tests of the page; nights are written by DAGs that leave recorded XComs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

from airflow_gpu_provider.errors import BlockFailed, GangHung
from gpu_sandbox.airflow_api import (
    LOCKED,
    LOCKED_TRIES,
    PATIENCE,
    AirflowApi,
    AirflowApiError,
    RunStatus,
    wait_until,
)
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.ports import free_port
from tests.browser import recorded
from tests.inherited import INHERITED

expect.set_options(timeout=PATIENCE * 1000 / 3)

REPOSITORY = Path(__file__).parents[2]
USERS = ("admin", "user", "viewer")
"""Each has the role of its name, and its name as password."""
DAGS = ("nightly", "recorded", "two_blocks", "no_gpus", "looks", "more_time", "of_a_team", "looks_of_a_team")
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Person(AirflowApi):
    """Somebody who has logged in with the simple auth manager."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self.name = name

    def _token(self) -> str:
        who = {"username": self.name, "password": self.name}
        answer = httpx.post(f"{self.url}/auth/token", json=who, timeout=PATIENCE / 3, trust_env=False)
        token: str = answer.raise_for_status().json()["access_token"]
        return token

    @property
    def token(self) -> str:
        return self._token()

    def conf_of(self, run: RunStatus) -> Any:
        """What a run was started with."""
        return self._call("GET", f"/dags/{quote(run.dag_id)}/dagRuns/{quote(run.run_id, safe='')}")["conf"]

    def plugins(self) -> list[dict[str, Any]]:
        """What Airflow tells its web UI of plugins."""
        found: list[dict[str, Any]] = self._call("GET", "/plugins")["plugins"]
        return found

    def record(self, dag_id: str, conf: Any, *, run_id: str | None = None) -> RunStatus:
        """Start a run that leaves `conf`."""
        body = {"logical_date": None, "conf": conf, "dag_run_id": run_id}
        return RunStatus.from_json(self._call("POST", f"/dags/{quote(dag_id)}/dagRuns", json=body))


ON_EACH_LANDING = frozenset(
    {
        "test_menu_page_and_tab_without_a_reload_and_back",
        "test_who_may_only_read_is_refused_each_button_in_words",
        "test_who_may_run_dags_looks_asks_for_time_and_stops_a_run",
        "test_who_is_logged_out_is_led_to_the_log_in",
    }
)
"""Of test_web_ui.py: the menu, the page, its buttons and the log-in. The other tests are for `make nightly`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_of_the_page = item.path.name == "test_web_ui.py" and item.name in ON_EACH_LANDING
        if item.path.parent == Path(__file__).parent and not is_of_the_page:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHome]:
    home = tmp_path_factory.mktemp("airflow")
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in USERS}))
    env = {
        "PYTHONPATH": python_path(REPOSITORY),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{name}" for name in USERS),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    with AirflowHome(home, Path(__file__).parent / "dags", env, parallelism=4, inherited=INHERITED) as running:
        yield running


@pytest.fixture(scope="session")
def admin(airflow: AirflowHome) -> Iterator[Person]:
    person = Person(airflow.url, "admin")
    for dag_id in DAGS:
        person.wait_for_dag(dag_id)
    yield person
    person.close()


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What there is to see: runs that have ended, by what is special about them; their confs by run id."""

    runs: dict[str, RunStatus]
    confs: dict[str, Any]


@pytest.fixture(scope="session")
def nights(admin: Person) -> Recorded:
    """A week of nights, a run of two blocks, one without GPUs, and a janitor's look that found problems."""

    def days_ago(days: int) -> datetime:
        return MIDNIGHT - timedelta(days=days, hours=-2)

    reference = "s3://xcoms/nightly/usage.json"
    bills: dict[str, tuple[Any, str]] = {
        "plain": (recorded.usage(days_ago(1)), ""),
        "long": (recorded.usage(days_ago(2), work=timedelta(hours=3)), ""),
        "at_least": (recorded.usage(days_ago(3), at_least="EC2 did not answer"), ""),
        "unpriced": (recorded.usage(days_ago(4), price=None), ""),
        "red": (recorded.usage(days_ago(5)), "machine i-1 is left"),
        "by_reference": (reference, ""),
        "sampled": (recorded.usage(days_ago(7), computed=0.38), ""),
        "training_failed": (recorded.usage(days_ago(8)), ""),
    }
    confs = {name: recorded.night("train-gpu", days_ago(1), bill, error=error) for name, (bill, error) in bills.items()}
    confs["training_failed"]["done"] = {"error": "Tasks failed: train: failed."}
    hung = recorded.error("train-gpu-train", GangHung("No rank has <b>printed</b> anything.", "Raise hang_timeout."))
    verdict = recorded.error("done", BlockFailed("Tasks failed: train.", "See their logs."))
    confs["training_failed"]["train-gpu.scale_down"]["xcoms"] |= {"error": hung}  # its DAG has no training
    confs["training_failed"]["done"] |= {"xcoms": {"error": verdict}}
    dags = dict.fromkeys(bills, "recorded") | {"plain": "nightly"}
    two = {**recorded.night("train-gpu", days_ago(6), recorded.usage(days_ago(6)))}
    two |= recorded.night("big-gpu", days_ago(6), recorded.usage(days_ago(6) + timedelta(hours=1), price=12.0))
    two["big-gpu-train"] |= {"error": "the first try fails", "errors": 1}
    confs |= {"two_blocks": two, "no_gpus": {}}
    dags |= {"two_blocks": "two_blocks", "no_gpus": "no_gpus"}
    runs = {name: admin.record(dags[name], conf, run_id=f"{name}+02:00") for name, conf in confs.items()}
    ended = {name: admin.wait_for_run(run.dag_id, run.run_id) for name, run in runs.items()}
    found = [
        recorded.finding("problem", "The quota for <b>g6</b> is 0.", fix="Ask AWS for more."),
        recorded.finding("warning", "A launch failed.", check="stock", fix="Name more zones."),
        recorded.finding("unchecked", "Quotas may not be read.", check="quota", fix="Allow it."),
    ]
    tonight = {f"nightly/scheduled__{MIDNIGHT.isoformat()}": MIDNIGHT + timedelta(days=1, hours=6)}
    look_at(admin, [recorded.status("train-gpu", tonight)], found)
    return Recorded(runs=ended, confs={ended[name].run_id: conf for name, conf in confs.items()})


def look_at(admin: Person, statuses: Any, findings: list[recorded.Conf], *, dag_id: str = "looks") -> RunStatus:
    """A janitor's run that saw this; returns when it has ended."""
    run = admin.record(dag_id, recorded.look(statuses, findings))
    return admin.wait_for_run(run.dag_id, run.run_id)


@pytest.fixture(scope="session")
def below_a_path(airflow: AirflowHome, admin: Person) -> Iterator[str]:
    """The same Airflow by another API server, whose base URL has a path."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/team/airflow"
    database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow.home}/airflow.db?timeout=3"}
    log = (airflow.home / "logs" / "below-a-path.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port)],
        env=airflow.environment | database | {"AIRFLOW__API__BASE_URL": url},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_until(lambda: _answers(url), timeout=PATIENCE, what="the second API server")
        yield url
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)
        log.close()


def _answers(url: str) -> bool:
    try:
        return bool(AirflowApi(url).health())
    except AirflowApiError:
        return False


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium here: apt-get install --no-install-recommends chromium")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(frozen=True, kw_only=True)
class Tab:
    """A browser's tab, with what went wrong in it: errors in its console, and answers of 400 and more."""

    page: Page
    context: BrowserContext
    url: str
    problems: list[str]

    def open(self, path: str = "/plugin/gpu_pools") -> Page:
        self.page.goto(self.url + path)
        return self.page


Visit = Callable[..., Tab]

WRITTEN = re.compile(r"/api/v2/dags/[^/]+/dagRuns(/[^/]+)?$")
"""Where the page's buttons write: what starts a run, and what marks one."""


def again_while_locked(route: Route) -> None:
    """Repeat a write that SQLite refused on a busy machine, as AirflowApi does; no other database has one lock."""
    answer = route.fetch(timeout=PATIENCE * 1000 / 3)
    for _ in range(LOCKED_TRIES):
        if answer.ok or not any(words in answer.text() for words in LOCKED):
            break
        time.sleep(1)
        answer = route.fetch(timeout=PATIENCE * 1000 / 3)
    route.fulfill(response=answer)


@pytest.fixture
def visit(browser: Browser, airflow: AirflowHome) -> Iterator[Visit]:
    """Opens a tab, logged in as the one who is named; `clock` lets the test turn the time on."""
    contexts: list[BrowserContext] = []

    def visit(name: str = "admin", *, url: str = "", theme: str = "light", clock: bool = False) -> Tab:
        contexts.append(browser.new_context(viewport={"width": 1000, "height": 900}, timezone_id="UTC"))
        contexts[-1].route(WRITTEN, again_while_locked)
        return tab_in(contexts[-1], name, url or airflow.url, theme=theme, clock=clock)

    yield visit
    for context in contexts:
        context.unroute_all(behavior="wait")  # a write's answer may be on its way
        context.close()


@pytest.fixture(scope="session")
def seen(browser: Browser, airflow: AirflowHome, nights: Recorded) -> Iterator[Page]:
    """The page, once for all tests that only read what is on it: Airflow's own scripts are seconds of CPU to load."""
    context = browser.new_context(viewport={"width": 1000, "height": 900}, timezone_id="UTC")
    page = tab_in(context, "admin", airflow.url).open()
    page.locator("[data-night]").first.wait_for()
    expect(page.get_by_text("are still being read")).to_have_count(0)
    yield page
    context.close()


def tab_in(context: BrowserContext, name: str, url: str, *, theme: str = "light", clock: bool = False) -> Tab:
    context.set_default_timeout(PATIENCE * 1000 / 3)
    context.add_cookies([{"name": "_token", "value": Person(url, name).token, "url": url}])
    context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    if clock:
        context.clock.install()
    page, problems = context.new_page(), list[str]()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda told: problems.append(f"{told.status} {told.url}") if told.status > 399 else None)
    return Tab(page=page, context=context, url=url, problems=problems)
