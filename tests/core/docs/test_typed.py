"""Every command of every page should be typed by a test, or have a reason why none can."""

from __future__ import annotations

import re

from tests.core.docs import typed
from tests.core.docs.typed import commands, explained, hidden, page, pages, untyped
from tests.harness.netns import ROOT

WITH_COMMANDS = [name for name in pages() if list(commands(page(name)))]


def test_there_are_pages_to_look_at() -> None:
    assert len(WITH_COMMANDS) > 20
    assert sum(len(list(commands(page(name)))) for name in WITH_COMMANDS) > 200


def test_a_module_types_each_page_with_commands() -> None:
    assert set(typed.TYPED) | set(typed.NOT_TYPED_PAGES) == set(WITH_COMMANDS)
    assert not set(typed.TYPED) & set(typed.NOT_TYPED_PAGES)
    for name, module in typed.TYPED.items():
        code = (ROOT / module).read_text(encoding="utf-8")
        assert re.search(rf'untyped\("{name}"|types\(host, (?:"{name}"|name)\)', code), name
        assert f'"{name}"' in code


def test_each_reason_is_that_of_a_command() -> None:
    every = [one for name in WITH_COMMANDS for one in commands(page(name))]
    for pattern, reason in typed.NOT_TYPED.items():
        assert any(explained(one) == pattern for one in every), pattern
        for named in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / named).exists(), named


def test_no_command_stands_in_a_block_of_another_kind() -> None:
    assert [name for name in pages() if hidden(page(name))] == []


PAGE = """
Words::

    curl -s http://127.0.0.1/

.. code-block:: sh

   dfmeta doctor        # what is wrong
   curl -d @- http://127.0.0.1/ <<END
   dfmeta is no command here
   END

1. In a guest:

   .. code-block:: console

      web1# curl \\
          http://169.254.169.254/
      dfmeta is printed

.. code-block:: sh
   :caption: a file

   dfmeta trace
"""


def test_commands_are_found_and_files_and_output_are_not() -> None:
    assert list(typed.located(PAGE)) == [
        ("", "dfmeta doctor"),
        ("", "curl -d @- http://127.0.0.1/ <<END\ndfmeta is no command here\nEND"),
        ("web1", "curl     http://169.254.169.254/"),
    ]


def test_a_command_in_a_plain_block_is_noticed() -> None:
    assert hidden(PAGE) == ["curl -s http://127.0.0.1/"]


def test_a_command_that_was_not_typed_is_noticed() -> None:
    left = "/opt/dfmeta/bin/dfmeta --version"
    every = list(commands(page("install")))
    assert untyped("install", every) == []
    assert untyped("install", [one for one in every if one != left]) == [left]
