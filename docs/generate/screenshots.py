"""Pictures of a running server's live page for the documentation, by headless Chromium.

    python -m docs.generate.screenshots http://127.0.0.1:8000

Needs the extra `browser` and Chromium; writes docs/images/dashboard*.png.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "images"
SIZES = {"dashboard": (1280, 1000), "dashboard-phone": (390, 844)}


def shoot(page: Page, url: str, name: str) -> None:
    """Write the first screen of the page, once it is drawn."""
    page.goto(f"{url}/dashboard")
    page.locator("#status").filter(has_text="units up").wait_for()
    page.wait_for_timeout(2000)
    page.screenshot(path=IMAGES / f"{name}.png")


def shoot_plan(page: Page, url: str) -> None:
    """Write the plan, and what it would be with four times the first model's rate."""
    page.goto(f"{url}/dashboard")
    page.locator("#plan").wait_for()
    name = page.locator("#model-rows tr td:first-child").first.inner_text()
    page.locator("#what-if").fill(f"rate:{name}=x4")
    page.locator("#what-if-try").click()
    page.locator("#plan-difference li").first.wait_for()
    page.locator("#plan").screenshot(path=IMAGES / "dashboard-plan.png")


def main() -> None:
    """Take all pictures of the server at argv[1]."""
    url = sys.argv[1].rstrip("/")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            shoot(page, url, name)
            page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        shoot_plan(page, url)
        browser.close()


if __name__ == "__main__":
    main()
