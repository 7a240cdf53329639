"""The page in headless Chromium, over real servers with scripted units."""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from starlette.types import ASGIApp

from muxcluster.core.errors import InvalidValue
from muxcluster.core.served import ServedModel, UnitStats
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.settings import ApiSettings
from tests.http.fakes import FakeBackend, running_server
from tests.http.listeners import free_port
from tests.http.live.many_models import HOSTILE, ManyModels, told_plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HAS_PLAYWRIGHT = find_spec("playwright") is not None
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="not installed: chromium (Debian: chromium)"),
    pytest.mark.skipif(not HAS_PLAYWRIGHT, reason="not installed: playwright ([browser])"),
]

DESKTOP, PHONE = (1280, 900), (390, 844)
PATIENCE_MS = 60_000
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root, as in containers, has no sandbox
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Seen:
    """A page and what went wrong in it: console messages, exceptions, dialogs, and what it asked
    of whom."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.troubles: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", self._on_dialog)
        page.on("request", lambda request: self.asked.append(request.url))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _on_dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def seen(request: pytest.FixtureRequest, browser: "Browser") -> Iterator[Seen]:
    yield from _opened(browser, request.param)


@pytest.fixture
def desktop(browser: "Browser") -> Iterator[Seen]:
    yield from _opened(browser, DESKTOP)


def _opened(browser: "Browser", size: tuple[int, int]) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    context.set_default_timeout(PATIENCE_MS)
    yield Seen(context.new_page())
    context.close()


def says(page: "Page", part: str, text: str) -> None:
    """Wait until a part of the page contains the text."""
    page.locator(f"#{part}").filter(has_text=text).wait_for(state="attached")


def app_of(backend: FakeBackend, **settings: Any) -> ASGIApp:
    return create_app(backend, ApiSettings(**settings))


def test_a_hundred_models_fit_and_nothing_goes_wrong(seen: Seen, served: ServedModel) -> None:
    page = seen.page
    with running_server(app_of(ManyModels(served))) as url:
        page.goto(f"{url}/dashboard")
        says(page, "status", "100 models")
        assert page.locator("#model-rows tr").count() == 100
        assert HOSTILE in page.locator("#model-rows").inner_text()
        assert page.locator("img").count() == 0
        # tables scroll by themselves, the page only up and down
        width, room = page.evaluate(WIDTHS)
        assert width <= room
        assert {asked.split("/", 3)[2] for asked in seen.asked} == {url.removeprefix("http://")}
        assert "/dashboard/page.css" in "".join(seen.asked)
    assert seen.troubles == []


def test_clicks_sort_find_and_open_a_model(desktop: Seen, served: ServedModel) -> None:
    page = desktop.page
    with running_server(app_of(ManyModels(served))) as url:
        page.goto(f"{url}/dashboard")
        says(page, "status", "100 models")
        names = page.locator("#model-rows td:first-child")
        sorts = page.locator("#model-head th:first-child button")
        sorts.click()
        assert names.first.inner_text() == "model-98"
        assert page.locator("#model-head th:first-child").get_attribute("aria-sort") == "descending"
        page.locator("#filter").fill("MODEL-7")
        assert names.all_inner_texts() == [
            *(f"model-{i}" for i in range(79, 69, -1)),
            "model-7",
        ]
        page.get_by_role("button", name="model-7", exact=True).click()
        says(page, "model", "model-7")
        assert "parked" in page.locator("#model tbody").inner_text()
        # Each second the table is made anew: what has the focus keeps it.
        turns = len(desktop.asked)
        while len(desktop.asked) < turns + 2:
            page.wait_for_timeout(100)
        assert page.evaluate("document.activeElement.textContent") == "model-7"
        page.keyboard.press("Enter")
        page.locator("#model article").wait_for(state="detached")
    assert desktop.troubles == []


class Changing(ManyModels):
    """A unit that may be gone, whose models may wake."""

    is_there = True
    weights = "parked"

    def stats(self) -> list[UnitStats]:
        if not self.is_there:
            return []
        (unit,) = super().stats()
        models = tuple(replace(model, weights=self.weights) for model in unit.models)
        return [replace(unit, now_s=time.monotonic(), models=models)]


def test_what_changes_is_shown(desktop: Seen, served: ServedModel) -> None:
    page, backend = desktop.page, Changing(served)
    with running_server(app_of(backend)) as url:
        page.goto(f"{url}/dashboard")
        says(page, "model-rows", "parked")
        backend.weights = "resident"
        says(page, "model-rows", "resident")
        says(page, "events", "parked → resident")
        backend.is_there = False
        says(page, "status", "0 of 0 units up")
        says(page, "model-rows", "no unit")
        backend.is_there = True
        says(page, "status", "1 of 1 units up")
    assert desktop.troubles == []


def test_a_server_that_returns_is_shown_again(desktop: Seen, served: ServedModel) -> None:
    page, port = desktop.page, free_port()
    with running_server(app_of(ManyModels(served)), port) as url:
        page.goto(f"{url}/dashboard")
        says(page, "status", "1 of 1 units up")
    says(page, "status", "the server does not answer; last answer at")
    assert page.locator("#model-rows tr").count() == 100
    with running_server(app_of(ManyModels(served)), port):
        says(page, "status", "1 of 1 units up")
        assert page.locator("body.stale").count() == 0
    # the browser itself says so of each question without an answer
    assert {trouble.split("net::")[0] for trouble in desktop.troubles} <= {
        "Failed to load resource: "
    }


def test_a_key_is_asked_for_and_stays_in_the_page(desktop: Seen, served: ServedModel) -> None:
    page = desktop.page
    with running_server(app_of(ManyModels(served), api_key="client", admin_key="admin")) as url:
        page.goto(f"{url}/dashboard")
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        says(page, "key-problem", "This key is not known.")
        page.locator("#key").fill("client")
        page.get_by_role("button", name="Show").click()
        says(page, "key-problem", "the admin key is needed")
        page.locator("#key").fill("admin")
        page.keyboard.press("Enter")
        says(page, "status", "100 models")
        assert page.locator("#key-form").is_hidden()
        kept = "[location.href, document.cookie, localStorage.length, sessionStorage.length]"
        assert page.evaluate(kept) == [f"{url}/dashboard", "", 0, 0]
        assert "admin" not in page.content().replace("the admin key", "")


class ScriptedPlans:
    """A plan, and what it becomes; or an error."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    async def plan(self) -> dict[str, Any]:
        return told_plan()

    async def what_if(self, changes: Sequence[str]) -> dict[str, Any]:
        self.asked.append(list(changes))
        if self.error is not None:
            raise self.error
        mesh = {"node": "n", "gpus": [2]}
        move = {"model": HOSTILE, "from": [], "to": mesh, "load_bytes": 2**31, "stays_too": False}
        difference = {
            "throughput": [2.5, 5.0],
            "load_bytes": 2**31,
            "moves": [move],
            "dropped": [],
            "removed": ["big"],
            "kept": [],
            "losers": [],
        }
        return {**told_plan(), "changes": list(changes), "difference": difference}


def test_a_what_if_plan_is_shown_and_left_again(seen: Seen, served: ServedModel) -> None:
    page, plans = seen.page, ScriptedPlans()
    app = create_app(ManyModels(served), ApiSettings(), parts=AppParts(plans=plans))
    with running_server(app) as url:
        page.goto(f"{url}/dashboard")
        says(page, "plan-summary", "no room for big")
        page.locator("#what-if").fill("rate:model-1=x2\n\n gpus:n=4 ")
        page.get_by_role("button", name="Plan with these changes").click()
        says(page, "plan-summary", "What if rate:model-1=x2, gpus:n=4: 2.5 requests/s")
        said = page.locator("#plan-difference").inner_text()
        assert "2.5 → 5.0 requests/s" in said and "remove: big" in said
        assert f"new: {HOSTILE} to n, GPU 2, 2.0 GiB to load" in said
        assert plans.asked == [["rate:model-1=x2", "gpus:n=4"]]
        plans.error = InvalidValue("changes rate:x=2: no model 'x'", "changes")
        page.locator("#what-if").fill("rate:x=2")
        page.get_by_role("button", name="Plan with these changes").click()
        says(page, "what-if-problem", "no model 'x'")
        page.get_by_role("button", name="Back to the plan in force").click()
        assert page.locator("#plan-difference li").count() == 0
        assert page.locator("#what-if-problem").inner_text() == ""
        width, room = page.evaluate(WIDTHS)
        assert width <= room
    assert [trouble for trouble in seen.troubles if "400" not in trouble] == []
