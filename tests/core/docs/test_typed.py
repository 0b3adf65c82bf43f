"""Every command of every page should be typed by a test, or have a reason why none can."""

import re

from tests.core.docs import typed
from tests.core.docs.typed import commands, explained, hidden, page, pages
from tests.harness.netns import ROOT

WITH_COMMANDS = [name for name in pages() if list(commands(page(name)))]


def test_a_module_types_each_page_with_commands() -> None:
    assert len(WITH_COMMANDS) > 20
    assert set(typed.TYPED) | set(typed.NOT_TYPED_PAGES) == set(WITH_COMMANDS)
    assert not set(typed.TYPED) & set(typed.NOT_TYPED_PAGES)
    for name, module in typed.TYPED.items():
        code = (ROOT / module).read_text(encoding="utf-8")
        assert re.search(rf'untyped\("{name}"|types\(host, (?:"{name}"|name)\)', code), name
        assert f'"{name}"' in code


def test_each_reason_is_that_of_a_command() -> None:
    every = [command for name in WITH_COMMANDS for command in commands(page(name))]
    for pattern, reason in typed.NOT_TYPED.items():
        assert any(explained(command) == pattern for command in every), pattern
        for named in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / named).exists(), named


def test_no_command_stands_in_a_block_of_another_kind() -> None:
    assert [name for name in pages() if hidden(page(name))] == []
