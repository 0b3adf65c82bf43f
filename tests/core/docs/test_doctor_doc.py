"""doc/source/doctor.rst should have every check of ``dfmeta doctor``, made from their table."""

import re
from collections import Counter
from pathlib import Path

from dfmeta.doctor.check import NEEDS, PLACES
from dfmeta.doctor.checks_guests import DRIVER
from dfmeta.doctor.table import CHECKS

PAGES = Path(__file__).parents[3] / "doc/source"
PAGE = (PAGES / "doctor.rst").read_text(encoding="utf-8")
NAMES = Counter(check.name for check in CHECKS)


def test_the_element_for_a_virtio_card_is_that_of_the_remedy() -> None:
    page = (PAGES / "store-kvm.rst").read_text(encoding="utf-8")
    assert DRIVER in "".join(line.strip() for line in page.splitlines())


def test_names_of_checks_are_unique_and_their_conditions_exist() -> None:
    assert [name for name, times in NAMES.items() if times > 1] == []
    assert {need for check in CHECKS for need in check.needs} == NEEDS.keys()
    assert {place for check in CHECKS for place in check.only} == PLACES.keys()


def test_every_check_has_a_sentence_and_its_page_exists() -> None:
    for check in CHECKS:
        assert check.about.endswith("."), check.name
        assert not check.page or (PAGES / f"{check.page}.rst").exists(), check.name


def test_the_page_has_the_list_and_adds_to_checks_that_exist() -> None:
    assert ".. dfmeta-checks::" in PAGE
    added = PAGE[PAGE.index("More than the line says") : PAGE.index("Guests' connections in")]
    headings = re.findall(r"^(``.*``)$", added, re.MULTILINE)
    names = {name for heading in headings for name in re.findall(r"``([\w-]+)``", heading)}
    assert names
    assert names <= NAMES.keys()
