"""Tests should neither sleep nor measure, and have no limit of their own; see testing.rst."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.core.docs.sources import ROOT, parsed

PROMPT: Mapping[str, str] = {
    "tests/host/e2e/support.py": "the time until a connection is open, for the next two",
    "tests/host/e2e/test_first_syns.py": "a first SYN is answered before its first repetition",
    "tests/soak/e2e/test_churn.py": "a load with a rate",
    "tests/host/e2e/test_hostile_packets.py": "a guest that repeats its SYN each second",
    "tests/host/ovs/test_meta_rows.py": "the daemon asks again every two seconds",
    "tests/host/e2e/test_identity.py": "a source with a limit of its own",
    "tests/host/e2e/test_start.py": "a source with a limit of its own",
    "tests/host/guest/test_programs.py": "a server that never ends its answer",
    "tests/host/haproxy/test_haproxy_process.py": "a haproxy that hangs",
}
"""Files with a time as their subject, and the subject."""
SLEEPS = {"time.sleep", "time.monotonic", "time.perf_counter"}
LIMITS = {"timeout", "deadline"}
CALLS = {"settimeout", "wait"}
"""Methods whose first argument is a number of seconds."""


def modules(*tiers: str) -> Iterator[Path]:
    """Yield the modules of some tiers, but not those of machines, whose CPU may be emulated."""
    for tier in tiers:
        for path in sorted((ROOT / "tests" / tier).rglob("*.py")):
            if str(path.relative_to(ROOT)) not in PROMPT and "real" not in path.parts:
                yield path


def calls(path: Path, words: Iterable[str]) -> Iterator[ast.Call]:
    """Yield the calls in a module, if its text has one of some words."""
    text = path.read_text(encoding="utf-8")
    if any(word in text for word in words):
        yield from (node for node in ast.walk(parsed(text)) if isinstance(node, ast.Call))


def has_number(call: ast.Call) -> bool:
    """Return whether a call has a number of seconds as its limit."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    values = [keyword.value for keyword in call.keywords if keyword.arg in LIMITS]
    values += call.args[:1] if name in CALLS else []
    return any(
        isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value
        for value in values
    )


def test_each_exception_exists() -> None:
    assert [path for path in PROMPT if not (ROOT / path).exists()] == []


def test_no_test_sleeps_or_measures() -> None:
    used = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in modules("core", "host", "soak")
        for call in calls(path, SLEEPS)
        if ast.unparse(call.func) in SLEEPS
    ]
    assert used == []


def test_no_test_of_a_host_has_a_limit_of_its_own() -> None:
    # In core the clock is given: a number of seconds there is no wait.
    limits = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:80]}"
        for path in modules("host", "soak")
        for call in calls(path, LIMITS | CALLS)
        if has_number(call)
    ]
    assert limits == []
