"""Console blocks of pages: typed commands, and their output with marked omissions.

A block is ``.. code-block:: console``. ``# command`` is typed as root on the host,
``web1# command`` in the guest of that name; a line that ends in a backslash continues in the next.
The lines up to the next prompt are output. A line of only three dots stands for any number of
lines, dots within a line for any text; nothing else may be omitted. Several spaces count as one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

DOTS = "..."
_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n((?: {3}:.*\n)*)\n((?: {3}.*\n|\n)+)", re.MULTILINE)
_PROMPT = re.compile(r"^(\w*)# (.+)$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A literal block of a page: its language, its caption, and its text without the margin."""

    kind: str
    caption: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, and its output on the page.

    :ivar guest: the guest in which the command is typed; empty for the host.
    """

    guest: str
    command: str
    shown: tuple[str, ...]


def blocks(page: str) -> Iterator[Block]:
    """Yield every literal block, in the page's order."""
    for result in _BLOCK.finditer(page):
        caption = re.search(r":caption: (.*)", result[2])
        text = re.sub("^ {3}", "", result[3], flags=re.MULTILINE).strip("\n")
        yield Block(kind=result[1], caption=caption[1] if caption else "", text=text)


def steps(text: str) -> Iterator[Step]:
    """Yield the commands of a console block, in their order.

    :raises ValueError: the block does not begin with a prompt.
    """
    guest, command = "", ""
    shown: list[str] = []
    for line in text.replace("\\\n", "").splitlines():
        prompt = _PROMPT.match(line)
        if prompt is None:
            if not command:
                raise ValueError(f"no prompt before {line!r}")
            shown.append(line)
            continue
        if command:
            yield Step(guest=guest, command=command, shown=tuple(shown))
        guest, command, shown = prompt[1], prompt[2], []
        command = " ".join(command.split()) if "'" not in command else command
    yield Step(guest=guest, command=command, shown=tuple(shown))


def difference(shown: tuple[str, ...], printed: str) -> str:
    """Return the first difference between the page and the output, or an empty string."""
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    gap = False
    for text in (" ".join(line.split()) for line in shown if line.strip()):
        if text == DOTS:
            gap = True
            continue
        if gap:
            while lines and not _like(text, lines[0]):
                del lines[0]
        if not lines or not _like(text, lines[0]):
            return f"shown: {text!r}, printed there: {lines[:1]}"
        del lines[0]
        gap = False
    return "" if gap or not lines else f"printed and not shown: {lines[0]!r}"


def _like(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.split(DOTS))
    return re.fullmatch(pattern, printed) is not None
