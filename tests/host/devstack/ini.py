"""Sets or prints an option of an ini file, for stubs.sh: set|get FILE GROUP OPTION [VALUE]."""

from __future__ import annotations

import configparser
import sys


def main(what: str, file: str, *where: str) -> None:
    """Do it. A file that is missing is made when an option is set, as devstack does."""
    ini = configparser.RawConfigParser(default_section="", delimiters=("=",))
    ini.read(file, encoding="utf-8")
    if what == "get":
        sys.stdout.write(ini.get(*where, fallback="") + "\n")
        return
    group, option, value = where
    if not ini.has_section(group):
        ini.add_section(group)
    ini.set(group, option, value)
    with open(file, "w", encoding="utf-8") as out:
        ini.write(out)


main(*sys.argv[1:])
