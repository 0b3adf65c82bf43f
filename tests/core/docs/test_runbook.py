"""doc/source/runbook.rst should name what there is: commands, checks, options and figures."""

import re
from pathlib import Path

from dfmeta import conf
from dfmeta.cli.ctl import COMMANDS
from dfmeta.doctor.table import CHECKS
from dfmeta.store.guest.backend import CONFLICT
from tests.core.docs import runbook_page
from tests.core.docs.page import sections
from tests.core.docs.runbook_page import PAGE, blocks
from tests.core.docs.sources import sources
from tests.core.docs.statuses import statuses

SOURCES = sources()
BLOCKS = blocks()
LITERALS = sorted({" ".join(literal.split()) for literal in re.findall(r"``([^`]+)``", PAGE)})
OPTIONS = {option.dest for _group, options in conf.own_opts() for option in options}
OTHERS = {"external_ids", "no_proxy", "http_proxy", "rp_filter"}
"""What looks like an option and is another program's, or another thing's name."""
CHAPTERS = {section.title for section in sections(PAGE) if section.mark == "="} - {"Runbook"}


def test_every_chapter_has_a_first_command() -> None:
    assert {block.chapter for block in BLOCKS} == CHAPTERS


def test_every_cause_has_its_metric_its_remedy_and_its_end() -> None:
    for block in BLOCKS:
        assert set(block.fields) == {"Metric", "To do", "Fixed when"}, block.name
        assert block.moves or block.fields["Metric"].startswith("none"), block.name


def test_commands_and_options_exist() -> None:
    commands = {literal.split()[1] for literal in LITERALS if literal.startswith("dfmeta ")}
    assert commands <= COMMANDS.keys()
    options = {literal for literal in LITERALS if re.fullmatch(r"[a-z]+_[a-z_]+", literal)}
    unknown = options - OPTIONS - OTHERS
    assert [name for name in unknown if not name.startswith("dfmeta")] == []


def test_every_check_of_the_doctor_is_one() -> None:
    named = set(re.findall(r"check\s+``([\w-]+)``", PAGE))
    assert named
    assert named <= {check.name for check in CHECKS}


def test_every_status_is_one() -> None:
    answered, _unknown = statuses(SOURCES)
    named = {int(status) for title in CHAPTERS for status in re.findall(r"\b[45]\d\d\b", title)}
    assert named == {400, 401, 403, 404, 429, 502, 503}
    assert named <= answered
    assert CONFLICT.status == 409


def test_every_block_is_broken_and_looked_at() -> None:
    code = Path(runbook_page.__file__).parents[2].joinpath("soak/e2e/breakages.py").read_text()
    broken = re.findall(r'^    "([\w-]+)": \w+(?:\(.*\))?,$', code, re.MULTILINE)
    assert sorted(block.name for block in BLOCKS) == sorted(broken)
