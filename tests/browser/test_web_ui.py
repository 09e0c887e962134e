"""GPU pools in Airflow's web UI, by a browser: the page, the tab of a run, and what is said where something is missing.

The first test comes before anything was recorded.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from gpu_sandbox.airflow_api import PATIENCE, RunStatus
from gpu_sandbox.airflow_home import AirflowHome
from tests.browser import recorded
from tests.browser.conftest import MIDNIGHT, Person, Recorded, Visit, look_at

CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
IMAGES = os.environ.get("BROWSER_IMAGES", "")
PHASES = ("booting", "working", "idle")


def run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/runs/{quote(run_id, safe='')}"


def shows(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.get_by_text(text).first).to_be_visible()


def loaded(page: Page) -> Page:
    """The page when both of its parts are there."""
    expect(page.get_by_role("heading", name="Pools now")).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("The last 30 days"))).to_be_visible()
    return page


# -- before anything has run ---------------------------------------------------------------------------------


def test_an_airflow_without_looks_and_nights_says_so(admin: Person, visit: Visit) -> None:
    tab = visit()
    page = loaded(tab.open())
    shows(page, re.compile("No task has checked a pool yet"))
    shows(page, re.compile("No doctor has checked yet"))
    shows(page, re.compile("No run has scaled a GPU pool down"))
    assert not tab.problems
    expect(page.get_by_role("button", name="Look now")).to_have_count(0)


# -- finding the way -----------------------------------------------------------------------------------------


def test_menu_page_and_tab_without_a_reload_and_back(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    page = tab.open("/")
    page.evaluate("window.isTheSame = true")
    page.get_by_text("Browse", exact=True).click()
    page.get_by_text("GPU pools", exact=True).click()
    loaded(page)
    page.locator("[data-night='plain+02:00']").get_by_role("link").first.click()
    shows(page, "What it cost")
    expect(page.locator("[data-lane='train-gpu.ensure']")).to_be_visible()
    page.go_back()
    loaded(page)
    assert page.evaluate("window.isTheSame")
    assert not tab.problems


def test_page_and_tab_below_a_sub_path(nights: Recorded, below_a_path: str, visit: Visit) -> None:
    tab = visit(url=below_a_path)
    page = loaded(tab.open())
    page.locator("[data-night='plain+02:00']").get_by_role("link").first.click()
    shows(page, "What it cost")
    assert page.url.startswith(f"{below_a_path}/dags/nightly/runs/")
    assert not tab.problems


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark_and_needs_no_sideways_scroll(
    theme: str, nights: Recorded, visit: Visit
) -> None:
    tab = visit(theme=theme)
    for path in ("/plugin/gpu_pools", f"{run_path('two_blocks', 'two_blocks+02:00')}/plugin/gpu_nodes"):
        page = tab.open(path)
        for said in ("By DAG", "Ask AWS for more.") if "pools" in path else ("What it cost",):
            shows(page, said)
        expect(page.locator("svg[role=img]")).to_be_visible()
        assert page.evaluate(CONTRAST, 4.5) == []
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        wide = "[...document.querySelectorAll('section, section table, [data-pool]')]"
        assert page.evaluate(f"{wide}.filter(each => each.scrollWidth > each.clientWidth + 1).length") == 0
        if IMAGES and "pools" in path:
            page.set_viewport_size({"width": 1000, "height": 1500})
            page.screenshot(path=f"{IMAGES}/gpu-pools-{theme}.png")
            page.set_viewport_size({"width": 1000, "height": 900})
    assert not tab.problems


# -- what it says --------------------------------------------------------------------------------------------


def test_problems_come_first_and_stay_text(seen: Page) -> None:
    first = seen.get_by_role("region", name="What would stop a night")
    expect(first).to_contain_text("The quota for <b>g6</b> is 0. What to do: Ask AWS for more.")
    expect(first).to_contain_text("A launch failed. What to do: Name more zones.")
    expect(first).to_contain_text("Quotas may not be read. What to do: Allow it.")
    assert first.locator("b").count() == 0


def test_a_pool_is_shown_with_its_machines_and_why_each_is_there(seen: Page) -> None:
    card = seen.locator("[data-pool='train-gpu']")
    expect(card).to_contain_text("runs default/train-abc")
    expect(card).to_contain_text("boots")
    expect(card).to_contain_text("2.00 USD")
    expect(card).not_to_contain_text("This is stale")


def test_a_look_that_is_hours_old_is_called_stale(nights: Recorded, visit: Visit) -> None:
    tab = visit(clock=True)
    tab.context.clock.set_fixed_time(datetime.now(UTC) + timedelta(hours=3))
    expect(loaded(tab.open()).locator("[data-pool='train-gpu']")).to_contain_text(
        re.compile(r"This is stale: the last check was 3\.\d h ago")
    )


def test_pools_that_no_task_has_looked_at_are_named_once_with_the_line_to_copy(seen: Page) -> None:
    told = seen.get_by_text("No task has checked these pools yet")
    expect(told).to_have_count(1)
    notice = seen.locator("div", has=told).filter(has=seen.locator("code", has_text="GpuPoolStatusOperator(")).last
    expect(notice).to_contain_text("big-gpu")
    expect(seen.locator("tr[data-pool='big-gpu']")).to_contain_text("not yet")


@pytest.mark.parametrize(
    ("night", "said"),
    [
        ("red", "scale-down failed"),
        ("unpriced", "unknown"),
        ("at_least", "at least 1.06 USD"),
        ("by_reference", "custom XCom backend"),
        ("plain", "+0.1417 USD"),
        ("sampled", "GPUs 38 %, known for 50 %"),
        ("training_failed", "run failed"),
    ],
)
def test_each_kind_of_night_has_its_word(night: str, said: str, seen: Page) -> None:
    expect(seen.locator(f"[data-night='{night}+02:00']")).to_contain_text(said)


def test_a_red_nights_error_has_the_rows_width_and_opens(seen: Page) -> None:
    error = seen.locator("[data-failed='training_failed+02:00']")
    expect(error.locator("summary")).to_have_text("train-gpu-train: GangHung: No rank has <b>printed</b> anything.")
    expect(error).not_to_contain_text("Raise hang_timeout.", use_inner_text=True)
    error.locator("summary").click()
    expect(error).to_contain_text("Raise hang_timeout.", use_inner_text=True)
    row = seen.locator("[data-night='training_failed+02:00']")
    assert error.locator("td").bounding_box()["width"] == pytest.approx(row.bounding_box()["width"], abs=2)  # type: ignore[index]


def test_bars_and_totals_are_the_sums_of_the_bills(nights: Recorded, seen: Page) -> None:
    xcoms = [task["xcoms"]["usage"] for conf in nights.confs.values() for key, task in conf.items() if "scale" in key]
    bills = [each for each in xcoms if isinstance(each, dict)]
    for phase in PHASES:
        bars = seen.locator(f"[data-phase={phase}]").evaluate_all(
            "all => all.map(each => Number(each.dataset.seconds))"
        )
        assert sum(bars) == pytest.approx(sum(bill["node_seconds"][phase] for bill in bills))
    priced = [bill["cost"]["total"] for bill in bills if bill["cost"]["total"] != "unknown"]
    told = seen.locator("[data-dag]").evaluate_all("all => all.map(row => row.children[5].textContent)")
    assert sum(dollars(cost) for cost in told) == pytest.approx(sum(priced), abs=0.02)
    expect(seen.locator("[data-dag='two_blocks'] td").nth(1)).to_have_text("1")  # one night, of two bills
    total = seen.locator("[data-all] td").nth(5).inner_text()
    assert dollars(total) == pytest.approx(sum(priced), abs=0.02)


def dollars(told: str) -> float:
    return float(told.removeprefix("at least ").removesuffix(" USD"))


def test_the_newest_nights_are_shown_while_the_others_are_read(nights: Recorded, visit: Visit) -> None:
    tab, held = visit(), list[Route]()
    the_others = re.compile("GPU.scale_down&run_after.*limit=100")
    tab.page.route(the_others, lambda route: held.append(route))
    page = loaded(tab.open())
    shows(page, re.compile(r"[0-9]+ earlier nights are still being read\."))
    expect(page.locator("[data-night]")).to_have_count(6)
    tab.page.route(the_others, lambda route: route.continue_())  # those to come
    for route in held:
        route.continue_()
    expect(page.get_by_text("are still being read")).to_have_count(0)
    expect(page.locator("[data-night='training_failed+02:00']")).to_be_visible()
    assert page.locator("[data-night]").count() >= len(nights.runs) - 1  # one run has no scale-down
    assert not tab.problems


def test_what_the_gpus_did_is_told_where_it_is_known(nights: Recorded, visit: Visit, seen: Page) -> None:
    expect(seen.locator("[data-dag='recorded']")).to_contain_text("GPUs 38 %, known for")
    expect(seen.locator("[data-dag='nightly']")).not_to_contain_text("GPUs")
    tab = visit()
    page = tab.open(f"{run_path('recorded', 'sampled+02:00')}/plugin/gpu_nodes")
    expect(page.locator("[data-bill='train-gpu.scale_down']")).to_contain_text("GPUs 38 %, known for 50 %")
    assert not tab.problems


def test_a_run_without_gpus_says_so(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    page = tab.open(f"{run_path('no_gpus', 'no_gpus+02:00')}/plugin/gpu_nodes")
    shows(page, "This run wanted no GPU nodes.")
    assert not tab.problems


def test_a_run_of_two_blocks_with_mapped_and_retried_tasks(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    page = tab.open(f"{run_path('two_blocks', 'two_blocks+02:00')}/plugin/gpu_nodes")
    for lane in ("train-gpu.ensure", "sweep [0]", "sweep [1]", "big-gpu-train", "big-gpu.scale_down"):
        expect(page.locator(f"[data-lane='{lane}']")).to_be_visible()
    for pool in ("train-gpu", "big-gpu"):
        expect(page.locator(f"[data-bill='{pool}.scale_down']")).to_contain_text("120 s booting")
    expect(page.locator("[data-task='big-gpu-train']")).to_contain_text("try 2")
    expect(page.locator("[data-task='big-gpu-train']")).to_contain_text("GPUs 38 %")
    machines = page.locator("[data-lane^='node-']")
    assert machines.count() == 2
    for lane in machines.all():
        kinds = lane.locator("[data-kind]").evaluate_all("all => all.map(each => each.dataset.kind)")
        assert kinds == ["booting", "working", "idle"]
    assert not tab.problems


# -- while a run goes on -------------------------------------------------------------------------------------


def test_a_run_boots_works_and_drains_and_is_shown_so(
    nights: Recorded, admin: Person, visit: Visit, tmp_path: Path
) -> None:
    stages = {"train-gpu.ensure": "booting", "train-gpu-train": "not checked yet", "train-gpu.scale_down": "draining"}
    conf = {task: {"until": str(tmp_path / stage)} for task, stage in stages.items()}
    run = admin.record("nightly", conf)
    tab = visit(clock=True)
    page = tab.page
    for number, (task, stage) in enumerate(stages.items()):
        admin.wait_for_task(run.dag_id, run.run_id, task, states=frozenset({"running"}))
        if number:
            tab.context.clock.fast_forward(76_000)
        else:
            loaded(tab.open())
        row = page.locator(f"[data-run='nightly/{run.run_id}']")
        expect(row).to_contain_text(stage)
        if stage == "not checked yet":
            wanted = {f"nightly/{run.run_id}": datetime.now(UTC) + timedelta(hours=3)}
            look_at(admin, [recorded.status("train-gpu", wanted)], [])
            tab.context.clock.fast_forward(76_000)
            expect(row).to_contain_text("working")
        (tmp_path / stage).touch()
    admin.wait_for_run(run.dag_id, run.run_id)
    tab.context.clock.fast_forward(76_000)
    expect(page.locator(f"[data-run='nightly/{run.run_id}']")).to_contain_text("over since that check")
    look_at(admin, [recorded.status("train-gpu", {})], [])
    tab.context.clock.fast_forward(76_000)
    expect(page.locator(f"[data-run='nightly/{run.run_id}']")).to_have_count(0)
    assert not tab.problems


def test_a_page_that_is_hidden_asks_nothing(nights: Recorded, visit: Visit) -> None:
    tab = visit(clock=True)
    page = loaded(tab.open())
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/v2/dags/~/" in request.url else None)

    def time_goes_on(times: int) -> None:
        for _ in range(times):
            tab.context.clock.fast_forward(76_000)
        with page.expect_request("**/nothing-more"):  # requests are told of in their order
            page.evaluate("void fetch('/nothing-more')")

    page.wait_for_load_state("networkidle")
    # Else a minute that this test takes would be another reload. The last request is of the nights' own.
    with page.expect_request("**/dagRuns/list"):
        tab.context.clock.pause_at(datetime.now(UTC) + timedelta(minutes=15))
    asked.clear()
    time_goes_on(times=3)
    assert sum("state=deferred" in url for url in asked) == 3
    assert len(asked) <= 3 * 3, "three lists each time"
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? true})")
    asked.clear()
    time_goes_on(times=5)
    assert asked == []
    with page.expect_request(lambda request: "state=deferred" in request.url):
        page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")


# -- buttons -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def booting(nights: Recorded, admin: Person, tmp_path_factory: pytest.TempPathFactory) -> RunStatus:
    """A run whose machine boots for as long as nobody ends it, and a look that has seen it."""
    admin.wait_for_run("more_time", admin.record("more_time", recorded.extends("train-gpu")).run_id)
    until = {"until": str(tmp_path_factory.mktemp("booting") / "go")}
    run = admin.record("nightly", {"train-gpu.ensure": until}, run_id="now+02:00")
    admin.wait_for_task(run.dag_id, run.run_id, "train-gpu.ensure", states=frozenset({"running"}))
    wanted = {f"nightly/{run.run_id}": datetime.now(UTC) + timedelta(hours=3)}
    look_at(admin, [recorded.status("train-gpu", wanted, max_cost=20.0)], [recorded.finding("ok", "as it should be")])
    return run


def test_who_may_only_read_is_refused_each_button_in_words(booting: RunStatus, admin: Person, visit: Visit) -> None:
    run = booting
    before = len(admin.runs("looks")), len(admin.runs("more_time"))
    page = loaded(visit("viewer").open())
    shows(page, "The doctor found nothing that would stop a night.")
    card = page.locator("[data-pool='train-gpu']")
    card.get_by_role("button", name="Look now").click()
    expect(card).to_contain_text("Airflow does not allow you to do this")
    for button, verb in (("Zero now", "Mark as failed"), ("More time", "Ask")):
        card.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(run.run_id)
        dialog.get_by_role("button", name=verb).click()
        expect(dialog).to_contain_text("Airflow does not allow you to do this")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
    assert (len(admin.runs("looks")), len(admin.runs("more_time"))) == before
    assert admin.run(run.dag_id, run.run_id).state == "running"


def test_who_may_run_dags_looks_asks_for_time_and_stops_a_run(
    airflow: AirflowHome, booting: RunStatus, admin: Person, visit: Visit
) -> None:
    page = loaded(visit("user").open())
    card = page.locator("[data-pool='train-gpu']")
    row = card.locator("[data-run='nightly/now+02:00']")
    expect(row).to_contain_text("booting")
    expect(row).to_contain_text("1 node until")
    row.get_by_role("button", name="More time").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It is asked of the DAG more_time.")
    for no_hours in ("-1", "0x10", "Infinity", "1e9", "two", ""):
        dialog.get_by_label("Hours more").fill(no_hours)
        dialog.get_by_role("button", name="Ask").click()
        expect(dialog).to_contain_text("Hours is a number above 0.")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    row.get_by_role("button", name="More time: now+02:00").click()
    expect(dialog).not_to_contain_text("Hours is a number")
    dialog.get_by_label("Hours more").fill("2")
    dialog.get_by_label("Reason").fill("the model has not converged")
    dialog.get_by_label("Reason").press("Enter")
    expect(dialog).to_contain_text("Done: the log of more_time", timeout=300_000)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    confs = [admin.conf_of(run) for run in admin.runs("more_time")]
    reason = "the model has not converged"
    asked = {"pool": "train-gpu", "dag_id": "nightly", "run_id": "now+02:00", "hours": 2, "reason": reason}
    assert asked in confs
    expect(row).to_contain_text("max_cost 20.00 USD: 0.5000 USD spent")
    expect(row).to_contain_text("at least 19.50 USD left")
    row.get_by_role("button", name="More money").click()
    dialog.get_by_label("In all, USD").fill("20")
    dialog.get_by_role("button", name="Ask").click()
    expect(dialog).to_contain_text("It may cost 20.00 USD now: give more than that")
    dialog.get_by_label("In all, USD").fill("30")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_label("Reason").press("Enter")
    expect(dialog).to_contain_text("Done: the log of more_time", timeout=300_000)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    asked = {**asked, "hours": None, "max_cost": 30}
    assert asked in [admin.conf_of(run) for run in admin.runs("more_time")]
    row.get_by_role("button", name="Zero now").click()
    expect(dialog).to_contain_text("now+02:00 of nightly as failed and ends default/train-abc")
    dialog.get_by_role("button", name="Mark as failed").click()
    expect(dialog).to_contain_text("The run was marked as failed")
    dialog.get_by_role("button", name="Close").click()
    # Not the run's state: its leaf is skipped here, and a scheduler that looks at that moment calls that a success.
    assert admin.wait_for_task("nightly", "now+02:00", "train-gpu.ensure").state == "failed"
    admin.wait_for_run("nightly", "now+02:00")
    before = len(admin.runs("looks"))
    hold = airflow.home / "hold-looks"
    hold.touch()
    card.get_by_role("button", name="Look now").click()
    expect(card).to_contain_text("looks was started as")
    assert len(admin.runs("looks")) == before + 1
    card.get_by_role("button", name="Look now at train-gpu").click()
    expect(card).to_contain_text("A check is already running: looks")
    runs = admin.runs("looks")
    assert len(runs) == before + 1
    hold.unlink()
    for run in runs:  # so that the next test's look is the last one
        admin.wait_for_run("looks", run.run_id)


def test_a_run_that_has_ended_since_the_last_look_is_told_as_over(
    nights: Recorded, admin: Person, visit: Visit
) -> None:
    late = "late+02:00"
    wanted = {f"nightly/{late}": datetime.now(UTC) + timedelta(hours=3)}
    hangs = (recorded.hang("train-gpu", f"nightly/{late}"), recorded.hang("train-gpu", "other/run"))
    look_at(admin, [recorded.status("train-gpu", wanted, hangs=hangs)], [recorded.finding("ok", "as it should be")])
    row = loaded(visit().open()).locator(f"[data-run='nightly/{late}']")
    expect(row).to_contain_text("no task of it runs now")
    expect(row.locator("[data-hang]")).to_have_count(1)
    expect(row.locator("[data-hang='default/train-0']")).to_contain_text(
        re.compile(
            r"may hang.*The GPUs of default/train-0, and those of its other 7 pods, have been busy at a draw near that"
            r" of idle ones \(70 W of 700 W each\) since \d{4}-\d\d-\d\d \d\d:\d\d"
        )
    )
    admin.record("nightly", nights.confs["plain+02:00"], run_id=late)
    admin.wait_for_run("nightly", late)
    row = loaded(visit().open()).locator(f"[data-run='nightly/{late}']")
    expect(row).to_contain_text("over since that check: train-gpu.scale_down ended")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row.locator("[data-hang]")).to_have_count(0)


def test_a_pool_that_no_look_has_named_has_no_button(nights: Recorded, visit: Visit) -> None:
    row = loaded(visit("user").open()).locator("[data-pool='big-gpu']")
    expect(row).to_contain_text("not yet")
    expect(row.get_by_role("button")).to_have_count(0)


def test_pools_of_one_name_are_told_apart_and_have_buttons_of_their_own(
    nights: Recorded, admin: Person, visit: Visit
) -> None:
    """Another team's pool has the name of ours: our extender is not its button."""
    admin.wait_for_run("more_time", admin.record("more_time", recorded.extends("train-gpu")).run_id)
    wanted = {"nightly/any": datetime.now(UTC) + timedelta(hours=3)}
    theirs = recorded.status("train-gpu", wanted, cluster="eks/team_b/us-west-2/k8s-ml")
    look_at(admin, [recorded.status("train-gpu", wanted), theirs], [recorded.finding("ok", "as it should be")])
    page = loaded(visit("user").open())
    here = page.locator(f"[data-pool='train-gpu'][data-cluster='{recorded.CLUSTER}']")
    there = page.locator("[data-pool='train-gpu'][data-cluster='eks/team_b/us-west-2/k8s-ml']")
    expect(here.get_by_role("button", name="More time")).to_have_count(1)
    expect(there).to_contain_text("There is no button for more time: no ExtendGpuPoolOperator with this pool")
    expect(there.get_by_role("button", name="More time")).to_have_count(0)
    expect(there.get_by_role("heading")).to_contain_text("train-gpu (eks/team_b/us-west-2/k8s-ml)")


# -- subclasses of the operators -----------------------------------------------------------------------------


def test_a_team_s_subclasses_are_shown_as_the_operators_are(
    nights: Recorded, admin: Person, visit: Visit, tmp_path: Path
) -> None:
    wanted = {"of_a_team/team+02:00": datetime.now(UTC) + timedelta(hours=3)}
    left = [recorded.finding("warning", "The team's launch failed.", pool="team-gpu", fix="Name more zones.")]
    look_at(admin, [recorded.status("team-gpu", wanted)], left, dag_id="looks_of_a_team")
    conf = recorded.night("team-gpu", MIDNIGHT, recorded.usage(MIDNIGHT))
    conf["tune"] = {"until": str(tmp_path / "go")}
    run = admin.record("of_a_team", conf, run_id="team+02:00")
    admin.wait_for_task(run.dag_id, run.run_id, "tune", states=frozenset({"running"}))
    tab = visit()
    page = loaded(tab.open())
    expect(page.get_by_role("region", name="What would stop a night")).to_contain_text("The team's launch failed.")
    expect(page.locator("[data-pool='team-gpu']")).to_contain_text("runs default/train-abc")
    expect(page.locator("[data-run='of_a_team/team+02:00']")).to_contain_text("working")
    (tmp_path / "go").touch()
    assert admin.wait_for_run(run.dag_id, run.run_id).state == "success"
    expect(loaded(tab.open()).locator("[data-night='team+02:00']")).to_contain_text("USD")
    page = tab.open(f"{run_path('of_a_team', 'team+02:00')}/plugin/gpu_nodes")
    expect(page.locator("[data-bill='team-gpu.scale_down']")).to_contain_text("120 s booting")
    kinds = {"team-gpu.ensure": "other", "plugin": "other", "tune": "working", "team-gpu-train [0]": "working"}
    for task, kind in kinds.items():
        expect(page.locator(f"[data-lane='{task}'] [data-kind]")).to_have_attribute("data-kind", kind)
    expect(page.locator("[data-task='team-gpu.ensure']")).to_contain_text("machine launched")
    assert not tab.problems


# -- who may not ---------------------------------------------------------------------------------------------


def test_what_is_forbidden_is_told_and_the_rest_is_shown(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    forbidden = {"status": 403, "json": {"detail": "Forbidden"}}
    tab.page.route(re.compile("xcom_key=usage"), lambda route: route.fulfill(**forbidden))
    page = tab.open()
    shows(page, "The nights could not be read: Airflow does not allow you to do this: Forbidden.")
    expect(page.get_by_role("heading", name="Pools now")).to_be_visible()


def test_who_may_not_read_runs_is_told_what_red_means(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    tab.page.route(re.compile("dagRuns/list"), lambda route: route.fulfill(status=403, json={"detail": "Forbidden"}))
    page = tab.open()
    shows(page, "You may not read DAG runs, so a night is called red here only if its scale-down failed.")
    expect(page.locator("[data-night='training_failed+02:00']")).not_to_contain_text("run failed")
    expect(page.locator("[data-night='red+02:00']")).to_contain_text("scale-down failed")


def test_an_airflow_that_does_not_list_its_plugins_is_whole_without_the_page(nights: Recorded, visit: Visit) -> None:
    tab = visit()
    tab.page.route(re.compile("/api/v2/plugins"), lambda route: route.fulfill(status=403, json={"detail": "Forbidden"}))
    page = tab.open("/dags")
    expect(page.get_by_role("link", name="two_blocks")).to_be_visible()


def test_who_is_logged_out_is_led_to_the_log_in(nights: Recorded, visit: Visit) -> None:
    tab = visit(clock=True)
    page = loaded(tab.open())
    tab.context.clear_cookies()
    tab.context.clock.fast_forward(76_000)
    expect(page).to_have_url(re.compile("/auth/(simple/)?login.*gpu_pools"))


def test_nobody_gets_more_than_the_script(airflow: AirflowHome, admin: Person) -> None:
    with httpx.Client(base_url=airflow.url, trust_env=False, timeout=PATIENCE / 3) as nobody:
        (ours,) = (each for each in admin.plugins() if each["name"] == "gpu_pools")
        script = nobody.get("/" + ours["react_apps"][0]["bundle_url"])
        assert (script.status_code, "AirflowPlugin" in script.text) == (200, True)
        for path in ("/", "/static", "/static/", "/docs", "/openapi.json", "/dags", "/static/%2e%2e/gpu_pools.py"):
            answer = nobody.get(f"/gpu-pools{path}")
            assert answer.status_code in (307, 404), path
            assert nobody.post(f"/gpu-pools{path}").status_code in (307, 404, 405)
        assert nobody.get("/api/v2/dags/~/dagRuns/~/taskInstances").status_code == 401


def test_the_first_screen_answers_what_runs_how_last_night_went_and_what_would_stop_tonight(
    nights: Recorded, admin: Person, visit: Visit
) -> None:
    idle = {"machines": (), "nodes": 0, "booting": 0, "cost_per_hour": 0.0}
    statuses = [recorded.status(f"pool-{number:02d}", {}, **idle) for number in range(19)]
    left = recorded.status("zz-not-ended", {}, unwanted=1)
    look_at(admin, [*statuses, left], [recorded.finding("problem", "The quota is 0.", pool="pool-03")])
    tab = visit()
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    page = loaded(tab.open())
    answers = {
        "Now": r"machines: \d+\.00 USD an hour",
        "Last night": r"\d+ runs? red|all green",
        "Tonight": "1 problem",
    }
    for name, answer in answers.items():
        box = page.locator(f"[data-answer='{name}']")
        expect(box).to_contain_text(re.compile(answer))
        assert lower_edge(box) < 900
    first = page.locator("[data-pool]").first
    expect(first).to_have_attribute("data-pool", "zz-not-ended")
    expect(first).to_contain_text("It has machines that no run wants.")
    assert lower_edge(first.get_by_text("It has machines")) < 900
    assert page.locator("tr[data-pool^='pool-']").count() == 19
    assert not tab.problems


def lower_edge(of: Locator) -> float:
    box = of.bounding_box()
    assert box is not None
    return box["y"] + box["height"]
