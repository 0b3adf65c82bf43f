"""A Chromium without JavaScript, controlled by lines of JSON on stdin; see browser.py.

It is a process of its own, because Playwright needs threads, and the daemon's imports have patched
them in pytest's process.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from playwright.sync_api import Browser, Error, Page, sync_playwright

LOOKS = 5
"""Maximum number of attempts to read a page that reloads at the same time."""

FLAGS = (
    "--no-sandbox",  # it runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOOK = """selector => {
    // The page may reload at any time: this reads one state of it, and only a complete one.
    if (document.readyState !== "complete") throw new Error("the page is not complete");
    const found = [...document.querySelectorAll(selector)];
    return {
        title: document.title,
        texts: found.map(one => one.innerText),
        boxes: found.map(one => one.getBoundingClientRect().toJSON()),
        widths: [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth],
        values: [...document.querySelectorAll("input")].map(one => one.value),
    };
}"""


class View:
    """A page in a window."""

    def __init__(self, browser: Browser, *, width: int, height: int, dark: bool) -> None:
        self._context = browser.new_context(
            java_script_enabled=False,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        self.page: Page = self._context.new_page()
        self._texts: list[str] = []
        """Those of the last answer."""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("console", lambda one: self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("requestfailed", lambda one: self.complaints.append(f"failed: {one.url}"))

    def await_change(self, selector: str, timeout: float) -> None:
        """Wait until the texts of the elements are not those of the last answer any more."""
        while self.look(selector)["texts"] == self._texts:
            self.page.wait_for_event("load", timeout=timeout * 1000)

    def look(self, selector: str) -> dict[str, Any]:
        """Return the content of the page; read it again if it was being reloaded."""
        for _ in range(LOOKS):
            try:
                return dict(self.page.evaluate(LOOK, selector))
            except Error:
                self.page.wait_for_load_state("load")
        return dict(self.page.evaluate(LOOK, selector))

    def seen(self, selector: str, picture: str | None) -> dict[str, Any]:
        """Return the current content of the page and its requests, as an answer."""
        if picture is not None:
            self.page.screenshot(path=picture, full_page=True)
        found = self.look(selector)
        self._texts = found["texts"]
        return {**found, "requests": self.requests, "complaints": self.complaints}

    def close(self) -> None:
        """Close the window."""
        self._context.close()


def main() -> None:
    """Execute the orders on stdin one after the other, and print a line as answer to each."""
    with sync_playwright() as playwright:
        # Debian's Chromium, or else Playwright's.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        view: View | None = None
        for line in sys.stdin:
            order = json.loads(line)
            if view is None or "url" in order:
                if view is not None:
                    view.close()
                view = View(
                    browser, width=order["width"], height=order["height"], dark=order["dark"]
                )
                view.page.goto(order["url"])
            elif "fill" in order:
                view.page.locator(order["fill"]).fill(order["text"])
                # Not a wait for a state: the test checks that nothing happens during the pause.
                view.page.wait_for_timeout(order["pause"] * 1000)
            elif "click" in order:
                with view.page.expect_navigation():
                    view.page.locator(order["click"]).click()
            else:
                view.await_change(order["selector"], order["timeout"])
            answer = view.seen(order["selector"], order.get("picture"))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        browser.close()


if __name__ == "__main__":
    main()
