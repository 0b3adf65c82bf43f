"""A template should give a member that a document lacks, or nothing at all."""

from __future__ import annotations

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


def test_a_template_is_filled_from_the_document_or_fails() -> None:
    for template, text in (
        ("https://{{.facility}}.phone.home/{{.os.slug}}", "https://da11.phone.home/ubuntu_20_04"),
        ("{{ .facility }}{{\t.count\n}}", "da113"),
        ("{{.reserved}} {{.big}} {{.os.version}}", "false 100000000000000000000 20.04"),
        ("no action } }} {", "no action } }} {"),
        ("{{.größe}}", "xl"),
        ("a{{.os.empty}}b", "ab"),
        ("", ""),
    ):
        assert rendered(template, DOCUMENT) == text, template
    for template in (
        *("{{.nothing}}", "{{.os.nothing}}", "{{.facility.sub}}", "{{.none}}", "{{.os}}"),
        *("{{.list}}", "{{.list.0}}", "{{.infinite}}", "{{.}}", "{{}}", "{{facility}}"),
        *("{{.facility", "{{{.facility}}}", "{{.facility}} {{", "{{..facility}}", "{{.with-dash}}"),
        *("{{.facility | upper}}", "{{if .facility}}x{{end}}", "{{- .facility -}}", "{{.os .os}}"),
    ):
        assert rendered(template, DOCUMENT) is None, template


def test_templates_give_missing_members_from_the_document_alone() -> None:
    templates = {"api_url": "https://{{.facility}}", "phone_home_url": "{{.x}}", "none": "y"}
    assert filled(DOCUMENT, templates) == {**DOCUMENT, "api_url": "https://da11"}
    document: dict[str, object] = {}
    assert filled(document, {"a": "x", "b": "{{.a}}"}) == {"a": "x"}
    assert document == {}


@given(st.text() | st.text("{}. abfacility"))
def test_any_template_has_an_outcome(template: str) -> None:
    text = rendered(template, DOCUMENT)
    assert text is None or "{{" not in text
