"""The requirements of setup.cfg, and their lowest versions as constraints for pip.

The program prints a line ``name==version`` for each package that dfmeta needs at run time,
including extras.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
EXTRAS: Final = ("neutron", "postgresql")
"""The extras that dfmeta uses at run time."""
_FORM: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[a-z]+\])?>=(?P<lowest>[0-9.]+)(,<(?P<below>[0-9.]+))?"
)


class Requirement(NamedTuple):
    """A requirement: a line of setup.cfg."""

    name: str
    """The normalized name (PEP 503)."""
    lowest: str
    extra: str
    """The extra that has the requirement; empty if dfmeta always needs it."""


def normalized(name: str) -> str:
    """Return the normalized name of a package, the same for all spellings (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(text: str) -> Iterator[Requirement]:
    """Yield dfmeta's requirements at run time.

    :param text: the content of setup.cfg.
    :raises ValueError: a line is not ``name>=lowest`` or ``name>=lowest,<below``.
    """
    parser = configparser.ConfigParser()
    parser.read_string(text)
    wanted = {"": parser["options"]["install_requires"]}
    wanted |= {extra: parser["options.extras_require"][extra] for extra in EXTRAS}
    for extra, lines in wanted.items():
        for line in lines.split():
            if (match := _FORM.fullmatch(line)) is None:
                raise ValueError(f"setup.cfg: {line}: write name>=lowest,<below")
            yield Requirement(normalized(match["name"]), match["lowest"], extra)


if __name__ == "__main__":
    for requirement in requirements((ROOT / "setup.cfg").read_text(encoding="utf-8")):
        print(f"{requirement.name}=={requirement.lowest}")
