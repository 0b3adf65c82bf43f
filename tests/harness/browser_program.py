"""A Chromium without JavaScript, told by lines of JSON on stdin what to look at; see browser.py.

A process of its own: Playwright runs on threads that the daemon's imports have changed in pytest's.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from playwright.sync_api import Browser, Error, Page, sync_playwright

T = TypeVar("T")
LOOKS = 5
"""How often a page is looked at that is loaded anew meanwhile."""

FLAGS = (
    "--no-sandbox",  # it runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"


class View:
    """A page in a window."""

    def __init__(self, browser: Browser, *, width: int, height: int, dark: bool) -> None:
        self._context = browser.new_context(
            java_script_enabled=False,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        self.page: Page = self._context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("console", lambda one: self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("requestfailed", lambda one: self.complaints.append(f"failed: {one.url}"))

    def await_change(self, selector: str, timeout: float) -> None:
        """Wait until the page has been loaded anew and what is found reads otherwise."""
        texts = self.page.locator(selector).all_inner_texts
        before, until = self.steady(texts), time.monotonic() + timeout
        while self.steady(texts) == before:
            left = until - time.monotonic()
            self.page.wait_for_event("load", timeout=max(left, 0.001) * 1000)

    def steady(self, look: Callable[[], T]) -> T:
        """Look again where the page was just being loaded anew, which takes it away."""
        for _ in range(LOOKS):
            try:
                return look()
            except Error:
                self.page.wait_for_load_state("load")
        return look()

    def seen(self, selector: str, picture: str | None) -> dict[str, Any]:
        """What can be read now; texts are those of what is visible."""
        if picture is not None:
            self.page.screenshot(path=picture, full_page=True)
        found = self.page.locator(selector)
        return {
            "title": self.page.title(),
            "texts": found.all_inner_texts(),
            "boxes": [one.bounding_box() for one in found.all()],
            "widths": self.page.evaluate(WIDTHS),
            "requests": self.requests,
            "complaints": self.complaints,
            "values": [one.input_value() for one in self.page.locator("input").all()],
        }

    def close(self) -> None:
        """Close the window."""
        self._context.close()


def main() -> None:
    """Do what the lines say, one after the other; an answer is a line for each."""
    with sync_playwright() as playwright:
        # Debian's, or else the one that Playwright has brought.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        view: View | None = None
        for line in sys.stdin:
            told = json.loads(line)
            if view is None or "url" in told:
                if view is not None:
                    view.close()
                view = View(browser, width=told["width"], height=told["height"], dark=told["dark"])
                view.page.goto(told["url"])
            elif "fill" in told:
                view.page.locator(told["fill"]).fill(told["text"])
                # Not for a state: for what must not happen meanwhile.
                view.page.wait_for_timeout(told["pause"] * 1000)
            elif "click" in told:
                with view.page.expect_navigation():
                    view.page.locator(told["click"]).click()
            else:
                view.await_change(told["selector"], told["timeout"])
            answer = view.steady(partial(view.seen, told["selector"], told.get("picture")))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        browser.close()


if __name__ == "__main__":
    main()
