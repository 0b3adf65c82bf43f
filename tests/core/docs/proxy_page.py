"""What is wrong with the page on the proxy, in sentences: the text against the code.

:func:`faults` takes the page's text and the code, so that a test can hand it damaged ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dfmeta import quiet
from dfmeta.cmd import daemon
from dfmeta.conf import agent, limits, rate, store
from dfmeta.proxy import access, connection, server, tokens
from dfmeta.proxy.worker import workers
from tests.core.docs.page import Section, absent, rows, sections
from tests.core.docs.statuses import reasons, statuses

NAMED: Mapping[str, tuple[str, ...]] = {
    "df_metadata": (
        "refuse_forwarded",
        "hold_timeout",
        "timeout_answer",
        "proxy_workers",
        "proxy_worker_user",
    ),
    "store": ("http_tokens", "http_tokens_of"),
    "guest_limits": tuple(one.name for one in limits.OPTS),
    "metadata_rate_limiting": tuple(one.name for one in rate.OPTS),
}
"""Group → options that the page has a row for."""
OPTIONS: Mapping[str, Any] = {
    one.name: one for module in (agent, limits, rate, store) for one in module.OPTS
}
STATUSES = "Statuses of dfmeta's own"
FACTS: Mapping[str, tuple[str, ...]] = {
    "Tokens": (
        f"(1 to {tokens.TTL_MAX})",
        f"``{tokens.TOKEN_PATH}``",
        "``X-aws-ec2-metadata-token``",
        "``X-aws-ec2-metadata-token-ttl-seconds``",
    ),
    "A connection's end": (
        {0.75: "fewer than three quarters of ``connections``"}[server.CROWDED],
        f"{connection.LINGER:g} second",
        f"{connection.LINGER_MAX} bytes",
    ),
    "Logging": (
        {60.0: "once a minute"}[quiet.QUIET],
        f"({access.PATH_SHOWN} characters at most)",
    ),
    "With workers": (
        {1.0: "once a second"}[workers.BEAT],
        f"not answered for {workers.SILENT * workers.BEAT:g} s",
        f"After {workers.HANGS * workers.BEAT:g} s it is killed",
        f"{workers.OVERTIME:g} s after its time",
        f"full for {workers.SETTLE_TIMEOUT:g} s",
    ),
    "At SIGTERM": (f"after {daemon.GRACE:g} seconds",),
    "At SIGHUP": (f"{workers.DRAIN:g} seconds to finish",),
}
"""Section → what the code says that has to be in it."""
_INLINE = re.compile(r"``(\w+)``\s+\(([\w.]+)\)")


def faults(page: str, texts: Mapping[str, str]) -> list[str]:
    """Everything in which the page and the code differ, and what of the code cannot be told."""
    found = sections(page)
    return [
        *_options(found),
        *_inline(page),
        *_limits(found, texts),
        *_statuses(found, texts),
        *absent(found, FACTS),
    ]


def default(option: Any) -> str:
    """An option's default, as the page has it."""
    match option.default:
        case bool() | str():
            return str(option.default)
        case int() | float():
            return f"{option.default:g}"
        case list():
            return ",".join(map(str, option.default))
        case dict() if not option.default:
            return "none"
    raise AssertionError(f"the check does not know how {option.name}'s default is written")


def _rows(found: list[Section], *titles: str) -> list[tuple[str, ...]]:
    """Rows of the tables in those sections, or in all, with what they say on one line."""
    return [
        row
        for section in found
        if not titles or section.title in titles
        for row in rows("\n\n".join(section.paragraphs))
        if len(row) == 3
    ]


def _options(found: list[Section]) -> Iterator[str]:
    there = [(one[0].strip("`"), one[1]) for one in _rows(found) if one[0].startswith("``")]
    names = {name for ones in NAMED.values() for name in ones}
    for name in sorted(names):
        values = [value for one, value in there if one == name]
        if values != [default(OPTIONS[name])]:
            yield f"{name} is {default(OPTIONS[name])}, and not {values}"
    yield from (f"{name} is none of the proxy's options" for name, _ in there if name not in names)


def _inline(page: str) -> Iterator[str]:
    for name, value in _INLINE.findall(page):
        if name not in OPTIONS or default(OPTIONS[name]) != value:
            yield f"``{name}`` is not {value}"


def _limits(found: list[Section], texts: Mapping[str, str]) -> Iterator[str]:
    """The row of a limit has the status that comes of it."""
    said = {one[0].strip("`"): one[2] for one in _rows(found, "Reading")}
    for reason, status in sorted(reasons(texts)):
        option = access._LIMITS.get(reason)
        if option is not None and not re.search(rf"\b{status}\b", said.get(option, "")):
            yield f"{option}: {status} is not there"


def _statuses(found: list[Section], texts: Mapping[str, str]) -> Iterator[str]:
    real, unknown = statuses(texts)
    yield from unknown
    own = [one for one in _rows(found, STATUSES) if one[0].isdigit()]
    there = [int(one[0]) for one in own]
    yield from (f"{one} is not in the table" for one in sorted(real - {*there}))
    yield from (f"{one} is in the table, and never comes" for one in sorted({*there} - real))
    if there != sorted({*there}):
        yield "the statuses are not in their order, or one is there twice"
    for status, cause, remedy in own:
        if not cause.endswith(".") or not remedy.endswith("."):
            yield f"{status}: its cause or its remedy is no sentence"
