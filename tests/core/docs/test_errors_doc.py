"""doc/source/errors.rst should have every error by its name, in the words that are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.docs.errors_page import MAKERS, PAGE, Maker, classes, sections

SECTIONS = {one.name: one for one in sections()}
CLASSES = classes()


def faults(page: str) -> list[str]:
    """What is wrong with a page, in sentences."""
    found = sections(page)
    there = {one.name: one for one in found}
    wrong = [f"{one.name} stands there twice" for one in found if there[one.name] is not one]
    for kind in CLASSES:
        section = there.pop(kind.name, None)
        if section is None:
            wrong.append(f"{kind.name} is not there")
            continue
        if section.classes != [kind.__name__]:
            wrong.append(f"{kind.name} is {kind.__name__}, not {section.classes}")
        if section.sentences != [kind.sentence]:
            wrong.append(f"{kind.name} says {kind.sentence!r}, not {section.sentences}")
    return [*wrong, *(f"no error is called {name}" for name in there)]


def test_every_error_is_there_with_its_class_and_sentence() -> None:
    assert faults(PAGE) == []


def test_missing_error_is_reported() -> None:
    kind = CLASSES[-1]
    assert faults(PAGE.replace(f"``{kind.name}``\n~", "another\n~"))
    assert faults(PAGE.replace(f"``{kind.__name__}``: ", "``OtherError``: "))


def test_every_error_has_a_name_of_its_own() -> None:
    assert [one for one in CLASSES if "name" not in vars(one)] == []
    assert len({one.name for one in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("name", MAKERS)
def test_example_is_the_line_that_is_printed(name: str, tmp_path: Path) -> None:
    line = MAKERS[name](Maker(tmp_path))
    assert SECTIONS[name].examples == [line]
    assert line.endswith(f" [{name}]")
    assert "\n" not in line


def test_every_example_is_made_by_a_program() -> None:
    assert {one.name for one in sections() if one.examples} == MAKERS.keys()
