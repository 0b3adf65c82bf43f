"""A template should give a member that a document lacks, or nothing at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.guest.templates import filled, rendered

DOCUMENT = {
    "facility": "da11",
    "os": {"slug": "ubuntu_20_04", "version": 20.04, "empty": ""},
    "count": 3,
    "big": 10**20,
    "reserved": False,
    "none": None,
    "list": ["a"],
    "infinite": float("inf"),
    "with-dash": "x",
    "größe": "xl",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("https://{{.facility}}.phone.home/{{.os.slug}}", "https://da11.phone.home/ubuntu_20_04"),
        ("{{ .facility }}{{\t.count\n}}", "da113"),
        ("{{.reserved}} {{.big}} {{.os.version}}", "false 100000000000000000000 20.04"),
        ("no action } }} {", "no action } }} {"),
        ("{{.größe}}", "xl"),
        ("a{{.os.empty}}b", "ab"),
        ("", ""),
    ],
)
def test_fields_are_put_in(template: str, text: str) -> None:
    assert rendered(template, DOCUMENT) == text


@pytest.mark.parametrize(
    "template",
    [
        *("{{.nothing}}", "{{.os.nothing}}", "{{.facility.sub}}", "{{.none}}", "{{.os}}"),
        *("{{.list}}", "{{.list.0}}", "{{.infinite}}", "{{.}}", "{{}}", "{{facility}}"),
        *("{{.facility", "{{{.facility}}}", "{{.facility}} {{", "{{..facility}}", "{{.with-dash}}"),
        *("{{.facility | upper}}", "{{if .facility}}x{{end}}", "{{- .facility -}}", "{{.os .os}}"),
    ],
)
def test_what_cannot_be_put_in_fails(template: str) -> None:
    assert rendered(template, DOCUMENT) is None


def test_a_document_gets_what_it_lacks_and_keeps_what_it_has() -> None:
    templates = {"api_url": "https://{{.facility}}", "phone_home_url": "{{.x}}", "none": "y"}
    assert filled(DOCUMENT, templates) == {**DOCUMENT, "api_url": "https://da11"}
    assert filled({"a": 1}, {"b": ""}) == {"a": 1}


def test_a_template_sees_nothing_of_another() -> None:
    assert filled({}, {"a": "x", "b": "{{.a}}"}) == {"a": "x"}


def test_the_document_itself_is_left_alone() -> None:
    document: dict[str, object] = {}
    filled(document, {"a": "x"})
    assert document == {}


@given(st.text() | st.text("{}. abfacility"))
def test_any_template_has_an_outcome(template: str) -> None:
    text = rendered(template, DOCUMENT)
    assert text is None or "{{" not in text
