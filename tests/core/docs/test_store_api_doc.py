"""doc/source/store-api.rst should say what the code does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dfmeta.store.api import admin, attached, bodies, openapi, requests, routes
from dfmeta.store.db.record import Kind

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/store-api.rst").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
QUERIES = {("get", "/device-metadata"): "?ip_address=ADDRESS", ("get", "/records"): "?after=ID"}
SOURCES = [ast.parse(Path(one.__file__).read_text()) for one in (admin, bodies, requests)]


def texts(node: ast.AST | None) -> str:
    """A text of the code, with N in the place of what stands in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(one.value) if isinstance(one, ast.Constant) else "N" for one in node.values
        )
    if isinstance(node, ast.Name):
        return str(vars(admin).get(node.id) or vars(requests).get(node.id) or "")
    return ""


def calls(name: str) -> Iterator[ast.Call]:
    for tree in SOURCES:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name in (
                getattr(node.func, "id", None),
                getattr(node.func, "attr", None),
            ):
                yield node


def refusals() -> set[tuple[str, str]]:
    """Status and message of all that the API itself refuses."""
    found = set()
    for call in calls("ApiError"):
        values = {one.arg: one.value for one in call.keywords}
        found.add((texts(values["status"]), texts(values["message"])))
    # Those are the authorizer's words, and what the helpers are given.
    return {(status, message) for status, message in found if status.isdigit() and message}


def conditions() -> set[tuple[str, str]]:
    return {(texts(call.args[0]), texts(call.args[1])) for call in calls("_failed")}


def test_the_page_has_each_message_condition_and_route() -> None:
    assert min(len(refusals()), len(conditions())) >= 13
    rows = [f"* - {status} - ``{message}`` - " for status, message in refusals()]
    rows += [f"* - ``{path}`` - ``{condition}`` - " for path, condition in conditions()]
    for path, methods in openapi.description(secured=True)["paths"].items():
        place = path.replace("userdata", "metadata").replace("{id}", "ID")
        for method in methods.keys() - {"head"}:
            rows.append(f"* - ``{method.upper()} {place}{QUERIES.get((method, place), '')}``")
    assert [row for row in rows if row not in WORDS] == []
    push = openapi.description(secured=True)["paths"]["/device-metadata"]["post"]
    assert [one for one in push["responses"] if not re.search(rf"\b{one}\b", PAGE)] == []


def test_the_example_can_be_pushed() -> None:
    body, device = re.findall(r"<<END\n(.*?)\n +END\n", PAGE, re.DOTALL)
    push = requests.parse_push(Kind.METADATA, body.encode())
    assert len(push.networks) == 3
    assert f"/device-metadata/{push.record_id}\n" in PAGE
    document = attached.attach({}, requests.parse_device(device.encode()))
    assert f"/device-metadata/{push.record_id}/devices\n" in PAGE
    (serial,) = re.findall(r"\?serial=([^\"]+)\"", PAGE)
    left = attached.detach(document, requests.parse_selector({"serial": [serial]}))
    assert left == {"devices": []}


def test_the_page_shows_lines_of_the_audit() -> None:
    shown = re.findall(r"^ +(Audit: .*)", PAGE, re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        ((method, path),) = re.findall(r"^Audit: (\w+) (\S+),", line)
        assert method in routes.find(path.replace("{id}", "x"))[0]
