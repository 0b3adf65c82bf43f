"""A real Chromium in a namespace, without JavaScript, for pages of the admin listener."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import netns
from tests.harness.closing import Closing

PHONE = (390, 844)
DESKTOP = (1360, 900)
"""Width and height of a window, in CSS pixels."""
START_TIMEOUT = 60.0
_PROGRAM = "browser_program.py"
_BROWSERS = netns.ROOT / ".cache/browsers"
"""Directory of the Chromium that tools/setup.sh installs if the distribution has no package."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The content of a page."""

    title: str
    texts: tuple[str, ...]
    """Visible texts of the elements that the selector finds."""
    boxes: tuple[dict[str, float], ...]
    """Positions of these elements."""
    widths: tuple[int, int, int]
    """Widths of the document, of its body and of the window."""
    requests: tuple[str, ...]
    """All URLs that the page has requested."""
    values: tuple[str, ...]
    """Values of the input fields in the page's forms."""
    complaints: tuple[str, ...]
    """Messages on the console, and failed requests."""


class Browser(Closing):
    """Chromium; a context manager that ends it.

    :param namespace: the namespace of the browser; it reaches only the addresses reachable there.
    :param pictures: a directory for a screenshot of each page, for inspection.
    """

    def __init__(self, namespace: netns.Namespace, pictures: Path | None = None) -> None:
        self._pictures = pictures
        self._taken = 0
        environment = {**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(_BROWSERS)}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(_PROGRAM))]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *namespace.command(command)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def close(self) -> None:
        """End the browser."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(START_TIMEOUT)
        self._process.stdout.close()

    def open(
        self, url: str, selector: str, *, window: tuple[int, int] = PHONE, dark: bool = False
    ) -> Seen:
        """Open a page in a new window, and read the elements that ``selector`` finds."""
        width, height = window
        return self._order(url=url, selector=selector, width=width, height=height, dark=dark)

    def changed(self, selector: str, *, timeout: float = 60) -> Seen:
        """Wait until the page has reloaded itself and the text of those elements has changed."""
        return self._order(selector=selector, timeout=timeout)

    def fill(self, field: str, text: str, selector: str, *, pause: float = 0) -> Seen:
        """Type into the field that the selector *field* finds, and wait for *pause* seconds."""
        return self._order(fill=field, text=text, selector=selector, pause=pause)

    def click(self, target: str, selector: str) -> Seen:
        """Click on the element that the selector *target* finds; this loads another page."""
        return self._order(click=target, selector=selector)

    def _order(self, **order: Any) -> Seen:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._pictures is not None:
            self._taken += 1
            order["picture"] = str(self._pictures / f"page-{self._taken}.png")
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the browser ended with {self._process.wait(START_TIMEOUT)}")
        found: dict[str, Any] = json.loads(line)
        for name, value in found.items():
            found[name] = tuple(value) if isinstance(value, list) else value
        return Seen(**found)
