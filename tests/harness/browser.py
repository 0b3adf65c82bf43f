"""A real Chromium in a namespace, without JavaScript, for pages of the admin listener."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness import netns

PHONE = (390, 844)
DESKTOP = (1360, 900)
"""Width and height of a window, in CSS pixels."""
START_TIMEOUT = 60.0
_PROGRAM = "browser_program.py"
_BROWSERS = Path(__file__).parents[2] / ".cache/browsers"
"""Where tools/setup.sh puts one that the distribution does not have."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What can be read of a page."""

    title: str
    texts: tuple[str, ...]
    """Of the elements that were asked for, as far as they are visible."""
    boxes: tuple[dict[str, float], ...]
    """Where they are."""
    widths: tuple[int, int, int]
    """Of the document, of its body and of the window."""
    requests: tuple[str, ...]
    """All URLs that the page has asked for."""
    values: tuple[str, ...]
    """What stands in the fields of its forms that can be typed into."""
    complaints: tuple[str, ...]
    """What stands on the console, and requests that failed."""


class Browser:
    """Chromium; a context manager that ends it.

    :param namespace: where it runs: only what that reaches is there for it.
    :param pictures: a folder that gets a picture of each page, for people.
    """

    def __init__(self, namespace: netns.Namespace, pictures: Path | None = None) -> None:
        self._pictures = pictures
        self._taken = 0
        environment = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
        environment["PLAYWRIGHT_BROWSERS_PATH"] = str(_BROWSERS)
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(_PROGRAM))]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *namespace.command(command)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()

    def open(
        self, url: str, selector: str, *, window: tuple[int, int] = PHONE, dark: bool = False
    ) -> Seen:
        """Open a page in a new window, and read the elements that ``selector`` finds."""
        width, height = window
        return self._tell(url=url, selector=selector, width=width, height=height, dark=dark)

    def changed(self, selector: str, *, timeout: float = 20) -> Seen:
        """Wait until the page has loaded itself anew and those elements read otherwise."""
        return self._tell(selector=selector, timeout=timeout)

    def fill(self, field: str, text: str, selector: str, *, pause: float = 0) -> Seen:
        """Type into the field that a selector finds, and wait for *pause* seconds."""
        return self._tell(fill=field, text=text, selector=selector, pause=pause)

    def click(self, target: str, selector: str) -> Seen:
        """Click on what a selector finds, which loads another page."""
        return self._tell(click=target, selector=selector)

    def _tell(self, **told: Any) -> Seen:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._pictures is not None:
            self._taken += 1
            told["picture"] = str(self._pictures / f"page-{self._taken}.png")
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the browser ended with {self._process.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        for name, value in found.items():
            found[name] = tuple(value) if isinstance(value, list) else value
        return Seen(**found)
