"""doc/source/store-api.rst should say what the code does."""

import re
from pathlib import Path

from dfmeta.store.api import openapi, requests, routes
from dfmeta.store.db.record import Kind

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/store-api.rst").read_text(encoding="utf-8")
QUERIES = {("get", "/device-metadata"): "?ip_address=ADDRESS", ("get", "/records"): "?after=ID"}


def test_the_page_has_each_route_and_each_status_of_a_push() -> None:
    paths = openapi.description(secured=True)["paths"]
    rows = []
    for path, methods in paths.items():
        place = path.replace("userdata", "metadata").replace("{id}", "ID")
        for method in methods.keys() - {"head"}:
            rows.append(f"   ``{method.upper()} {place}{QUERIES.get((method, place), '')}``")
    assert [row for row in rows if row not in PAGE] == []
    push = paths["/device-metadata"]["post"]
    assert [status for status in push["responses"] if not re.search(rf"\b{status}\b", PAGE)] == []


def test_the_example_can_be_pushed() -> None:
    body, device = re.findall(r"<<END\n(.*?)\n +END\n", PAGE, re.DOTALL)
    push = requests.parse_push(Kind.METADATA, body.encode())
    assert len(push.networks) == 3
    assert f"/device-metadata/{push.record_id}\n" in PAGE
    document = requests.attach({}, requests.parse_device(device.encode()))
    assert f"/device-metadata/{push.record_id}/devices\n" in PAGE
    (serial,) = re.findall(r"\?serial=([^\"]+)\"", PAGE)
    left = requests.detach(document, requests.parse_selector({"serial": [serial]}))
    assert left == {"devices": []}


def test_the_page_shows_lines_of_the_audit() -> None:
    shown = re.findall(r"^ +(Audit: .*)", PAGE, re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        ((method, path),) = re.findall(r"^Audit: (\w+) (\S+),", line)
        assert method in routes.find(path.replace("{id}", "x"))[0]
