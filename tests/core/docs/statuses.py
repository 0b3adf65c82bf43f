"""Which statuses the proxy answers by itself, read from its code.

A status that is not written where it is answered has to be one that is known below to be somebody
else's, or the caller's; all else is a fault.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.core.docs.sources import parsed

ANSWERING: Mapping[str, int | str] = {
    "_text": 0,
    "_refusal": 2,
    "Answer": 0,
    "BadRequestError": "status",
}
"""What makes an answer → where its status stands."""
PASSED_ON = {
    # What Nova says.
    "nova.py: response.status",
    # What the daemon's backend says to a worker.
    "pipe.py: message['status']",
    # What its callers say, who are looked at.
    "application.py: status",
}


def statuses(texts: Mapping[str, str]) -> tuple[set[int], list[str]]:
    """All of them, and what cannot be told.

    :param texts: module's path → its text.
    """
    result: set[int] = set()
    faults: list[str] = []
    for module, node in _nodes(texts):
        for status in _of(node):
            where = f"{PurePosixPath(module).name}: {status}"
            if isinstance(status, int):
                result.add(status)
            elif where not in PASSED_ON:
                faults.append(f"what status is answered is not known: {where}")
    return result, faults


def reasons(texts: Mapping[str, str]) -> set[tuple[str, int]]:
    """What a request is refused for, each with its status."""
    result = set()
    for _module, node in _nodes(texts):
        match node:
            case ast.Call(
                func=ast.Name("BadRequestError") | ast.Attribute(attr="BadRequestError"),
                keywords=keywords,
            ):
                given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords[:2]}
                result.add((given["reason"], given["status"]))
    return result


def _nodes(texts: Mapping[str, str]) -> Iterator[tuple[str, ast.AST]]:
    for module, text in texts.items():
        if module.startswith(("dfmeta/proxy/", "dfmeta/http/")):
            yield from ((module, node) for node in ast.walk(parsed(text)))


def _of(node: ast.AST) -> Iterator[int | str]:
    """Statuses that *node* answers: a number, or an expression as it is written."""
    match node:
        case ast.Constant(value=bytes(text)):
            yield from map(int, re.findall(rb"HTTP/1\.1 ([1-5]\d\d)", text))
        case ast.Call(func=ast.Name(name) | ast.Attribute(ast.Name("model" | "errors"), name)) if (
            name in ANSWERING
        ):
            given: dict[int | str | None, ast.expr] = dict(enumerate(node.args))
            given |= {keyword.arg: keyword.value for keyword in node.keywords}
            value = given.get(ANSWERING[name]) or given.get("status")
            if isinstance(value, ast.Constant) and isinstance(value.value, int):
                yield value.value
            else:
                yield ast.unparse(value or node)
