"""Which statuses the proxy answers by itself, read from its code.

A status that is not written where it is answered has to be one that is known below to be somebody
else's, or the caller's; all else is a fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from tests.core.docs.sources import parsed

PROXY = "dfmeta/proxy/"
ANSWERING: Mapping[str, int | str] = {"_text": 0, "Answer": 0, "BadRequestError": "status"}
"""What makes an answer → where its status stands."""
PASSED_ON = frozenset(
    {
        # What Nova says.
        "backend.py: reply.status",
        # What the daemon's backend says to a worker.
        "pipe.py: message['status']",
        # What its callers say, who are looked at.
        "application.py: status",
    }
)
_INTERIM = re.compile(rb"HTTP/1\.1 ([1-5]\d\d)")


def statuses(texts: Mapping[str, str]) -> tuple[set[int], list[str]]:
    """All of them, and what cannot be told.

    :param texts: module's path → its text.
    """
    found: set[int] = set()
    faults: list[str] = []
    for module, text in texts.items():
        if not module.startswith(PROXY):
            continue
        for status in _in(text):
            if isinstance(status, int):
                found.add(status)
            elif (where := f"{PurePosixPath(module).name}: {status}") not in PASSED_ON:
                faults.append(f"what status is answered is not known: {where}")
    return found, faults


def reasons(texts: Mapping[str, str]) -> set[tuple[str, int]]:
    """What a request is refused for, each with its status."""
    of_proxy = (text for module, text in texts.items() if module.startswith(PROXY))
    return {one for text in of_proxy for one in _refusals(text)}


@cache
def _in(text: str) -> Sequence[int | str]:
    """Statuses that a module's text answers."""
    return [status for node in ast.walk(parsed(text)) for status in _of(node)]


@cache
def _refusals(text: str) -> frozenset[tuple[str, int]]:
    """What a module's text refuses a request for, each with its status."""
    found = set()
    for node in ast.walk(parsed(text)):
        match node:
            case ast.Call(func=ast.Name("BadRequestError"), keywords=keywords):
                given = {one.arg: ast.literal_eval(one.value) for one in keywords[:2]}
                found.add((given["reason"], given["status"]))
    return frozenset(found)


def _of(node: ast.AST) -> Iterator[int | str]:
    """Statuses that *node* answers: a number, or an expression as it is written."""
    match node:
        case ast.Constant(value=bytes(text)):
            yield from map(int, _INTERIM.findall(text))
        case ast.Call(func=ast.Name(name)) if name in ANSWERING:
            where = ANSWERING[name]
            given: dict[int | str | None, ast.expr] = dict(enumerate(node.args))
            given |= {one.arg: one.value for one in node.keywords}
            value = given.get(where) or given.get("status")
            match value:
                case ast.Constant(value=int(status)):
                    yield status
                case None:
                    yield ast.unparse(node)
                case _:
                    yield ast.unparse(value)
