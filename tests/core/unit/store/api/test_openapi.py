"""The description of the admin API should be valid and name its routes and scopes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dfmeta.store.api import openapi
from dfmeta.store.api.routes import ROUTES

DESCRIPTION = openapi.description(secured=True)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_reference_is_to_a_component() -> None:
    text = json.dumps(DESCRIPTION)
    names = {one.split('"')[0] for one in text.split('{"$ref": "#/components/')[1:]}
    for name in names:
        section, one = name.split("/")
        assert one in DESCRIPTION["components"][section], name
    used = {name.split("/")[1] for name in names}
    assert used >= DESCRIPTION["components"]["responses"].keys() - {"RequestTimeout"}


def test_each_route_is_described_once_with_its_parameters() -> None:
    known = {(route.path, route.method) for route in ROUTES}
    described = {(path, method.upper()) for path, method, _ in operations()}
    assert {one for one in described if one[1] != "HEAD"} == known
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    for path, _method, operation in operations():
        placed = {one["name"] for one in operation["parameters"] if one.get("in") == "path"}
        assert ("id" in placed) == ("{id}" in path), path
        assert operation["responses"], path


def test_each_operation_names_its_scopes() -> None:
    described = {(path, method): one["description"] for path, method, one in operations()}
    for route in ROUTES:
        text = described[route.path, route.method.lower()]
        assert ", ".join(route.scopes) in text, route
    assert DESCRIPTION["security"] == [{"bearer": []}]
    assert openapi.description(secured=False)["security"] == []
