"""A page that shows what is not printed should be noticed, and nothing else should be."""

from __future__ import annotations

import pytest

from tests.harness.console import Step, blocks, difference, steps

PAGE = """
Text.

.. code-block:: ini
   :caption: /etc/file

   [group]

   option = 1

.. code-block:: console

   # one \\
       --option
   printed
   web1# two

More.
"""
PRINTED = "first   line\nsecond line\nthird\n"


def test_blocks_come_with_their_caption_and_without_their_margin() -> None:
    ini, console = blocks(PAGE)
    assert (ini.kind, ini.caption, ini.text) == ("ini", "/etc/file", "[group]\n\noption = 1")
    assert list(steps(console.text)) == [
        Step(guest="", command="one --option", shown=("printed",)),
        Step(guest="web1", command="two", shown=()),
    ]


def test_a_console_begins_with_a_prompt() -> None:
    with pytest.raises(ValueError, match="no prompt before 'printed'"):
        list(steps("printed\n# one"))


@pytest.mark.parametrize(
    "shown",
    [
        ("first line", "second  line", "third"),
        ("...",),
        ("first ...", "..."),
        ("...", "second line", "..."),
        ("...", "third"),
        ("first line", "...", "t...d"),
    ],
)
def test_what_is_left_out_is_no_difference(shown: tuple[str, ...]) -> None:
    assert difference(shown, PRINTED) == ""


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (("first line", "third"), "shown: 'third', printed there: ['second line']"),
        (("second line", "third"), "shown: 'second line', printed there: ['first line']"),
        (("first line", "second line"), "printed and not shown: 'third'"),
        (("...", "fourth"), "shown: 'fourth', printed there: []"),
        (("...", "third", "fourth"), "shown: 'fourth', printed there: []"),
        ((), "printed and not shown: 'first line'"),
    ],
)
def test_what_differs_is_named(shown: tuple[str, ...], found: str) -> None:
    assert difference(shown, PRINTED) == found
