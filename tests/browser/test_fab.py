"""GPU pools in the web UI of an Airflow with FAB's auth manager: who sees the page, and what of it.

Simple and FAB differ in who may read plugins, and FAB alone gives rights on single DAGs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from gpu_sandbox.airflow_home import AirflowHome, database_template, python_path
from tests.browser import recorded
from tests.browser.conftest import MIDNIGHT, PATIENCE, REPOSITORY, Person, Visit, look_at
from tests.inherited import INHERITED

# What "team" may read of DAGs is in dags/recorded_nights.py.
TEAM = ("Website", "Plugins", "DAG Runs", "Task Instances", "XComs")
ROLES = {
    "op": ["Op"],
    "viewer": ["Viewer"],
    "reader": ["Viewer", "pages"],
    "user": ["User", "pages"],
    "member": ["team"],
}
"""Users beside the Admin, with their roles; each has its name as password."""
NIGHTS = ("nightly", "recorded")


@pytest.fixture(scope="module")
def fab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHome]:
    home = tmp_path_factory.mktemp("fab")
    env = {
        "PYTHONPATH": python_path(REPOSITORY),
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
    }
    airflow = AirflowHome(home, Path(__file__).parent / "dags", env, parallelism=4, inherited=INHERITED)
    shutil.copyfile(database_template(), home / "airflow.db")
    roles = [{"name": "pages", "resource": "Plugins", "action": "can_read"}]
    roles += [{"name": "team", "resource": resource, "action": "can_read"} for resource in TEAM]
    (home / "roles.json").write_text(json.dumps(roles))
    _run(airflow, "db", "migrate")
    _run(airflow, "roles", "import", str(home / "roles.json"))  # before a DAG is read that names one
    who = {"username": "admin", "password": "admin", "email": "admin@example.com", "role": "Admin"}
    options = who | {"firstname": "admin", "lastname": "admin"}
    _run(airflow, "users", "create", *(f"--{name}={value}" for name, value in options.items()))
    with airflow:
        yield airflow


def _run(airflow: AirflowHome, *arguments: str) -> None:
    command = [sys.executable, "-m", "airflow", *arguments]
    result = subprocess.run(command, env=airflow.environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def boss(fab: AirflowHome) -> Iterator[Person]:
    """The Admin, once there are a night of each DAG and a look."""
    person = Person(fab.url, "admin")
    bearer = {"Authorization": f"Bearer {person.token}"}
    for name, roles in ROLES.items():
        names = {"username": name, "first_name": name, "last_name": name, "email": f"{name}@example.com"}
        user = {**names, "password": name, "roles": [{"name": role} for role in roles]}
        answer = httpx.post(
            f"{fab.url}/auth/fab/v1/users", json=user, headers=bearer, timeout=PATIENCE / 3, trust_env=False
        )
        answer.raise_for_status()
    for dag_id in (*NIGHTS, "looks"):
        person.wait_for_dag(dag_id)
    at = MIDNIGHT - timedelta(days=1)
    night = recorded.night("train-gpu", at, recorded.usage(at))
    runs = [person.record(dag_id, night, run_id=f"{dag_id}+02:00") for dag_id in NIGHTS]
    for run in runs:
        person.wait_for_run(run.dag_id, run.run_id)
    look_at(
        person, [recorded.status("train-gpu", {})], [recorded.finding("problem", "The quota is 0.", fix="Ask AWS.")]
    )
    yield person
    person.close()


def shows_nights(page: Page, *run_ids: str) -> None:
    expect(page.locator("[data-night]")).to_have_count(len(run_ids))
    for run_id in run_ids:
        expect(page.locator(f"[data-night='{run_id}']")).to_be_visible()


def test_who_logs_in_finds_the_page_in_the_menu(fab: AirflowHome, boss: Person, browser: Browser) -> None:
    with browser.new_context(viewport={"width": 1000, "height": 900}) as context:
        context.set_default_timeout(PATIENCE * 1000 / 3)
        page = context.new_page()
        page.goto(fab.url)
        page.locator("#username").fill("op")
        page.locator("#password").fill("op")
        page.locator("[type=submit]").click()
        page.get_by_text("Browse", exact=True).click()
        page.get_by_role("menuitem", name="GPU pools").click()
        expect(page.get_by_text("The quota is 0.").first).to_be_visible()
        shows_nights(page, "nightly+02:00", "recorded+02:00")


def test_who_may_not_read_plugins_has_the_rest_of_airflow(fab: AirflowHome, boss: Person, visit: Visit) -> None:
    page = visit("viewer", url=fab.url).open("/dags")
    expect(page.get_by_role("link", name="two_blocks")).to_be_visible()
    page.get_by_text("Browse", exact=True).click()
    expect(page.get_by_role("menuitem").first).to_be_visible()
    expect(page.get_by_role("menuitem", name="GPU pools")).to_have_count(0)


def test_who_may_read_plugins_too_sees_the_page_and_may_change_nothing(
    fab: AirflowHome, boss: Person, visit: Visit
) -> None:
    tab = visit("reader", url=fab.url)
    page = tab.open()
    shows_nights(page, "nightly+02:00", "recorded+02:00")
    assert not tab.problems
    card = page.locator("[data-pool='train-gpu']")
    before = len(boss.runs("looks"))
    card.get_by_role("button", name="Look now").click()
    expect(card).to_contain_text("Airflow does not allow you to do this")
    assert len(boss.runs("looks")) == before


def test_who_may_run_dags_looks(fab: AirflowHome, boss: Person, visit: Visit) -> None:
    page = visit("user", url=fab.url).open()
    card = page.locator("[data-pool='train-gpu']")
    before = len(boss.runs("looks"))
    card.get_by_role("button", name="Look now").click()
    expect(card).to_contain_text("looks was started as")
    assert len(boss.runs("looks")) == before + 1


def test_who_may_read_one_dag_sees_its_nights_alone(fab: AirflowHome, boss: Person, visit: Visit) -> None:
    tab = visit("member", url=fab.url)
    page = tab.open()
    shows_nights(page, "nightly+02:00")
    expect(page.get_by_text("No doctor has checked yet")).to_be_visible()
    expect(page.get_by_text("The quota is 0.")).to_have_count(0)
    assert not tab.problems
    page.locator("[data-night]").get_by_role("link").first.click()
    expect(page.locator("[data-bill='train-gpu.scale_down']")).to_contain_text("120 s booting")
    others = visit("member", url=fab.url).open("/dags/recorded/runs/recorded%2B02%3A00/plugin/gpu_nodes")
    expect(others.locator("[data-bill]")).to_have_count(0)


def test_who_is_logged_out_is_led_to_the_log_in(fab: AirflowHome, boss: Person, visit: Visit) -> None:
    tab = visit("op", url=fab.url, clock=True)
    page = tab.open()
    shows_nights(page, "nightly+02:00", "recorded+02:00")
    tab.context.clear_cookies()
    tab.context.clock.fast_forward(76_000)
    expect(page).to_have_url(re.compile("/auth/login"))
