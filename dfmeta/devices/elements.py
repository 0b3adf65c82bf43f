"""Reads the elements of a libvirt domain as a stream. Pure.

Source: libvirt's formatdomain.rst. The files belong to root, so they are trusted; but a file may be
large, broken or incomplete, which must not affect the others. A document type is refused, and with
it all entities that it defines: neither the inclusion of a file of the host nor "billion laughs" is
possible.
"""

from collections.abc import Mapping
from typing import Any, Final
from xml.parsers import expat

from dfmeta.errors import DomainError

SIZE_MAX: Final = 1 << 20
"""Largest size in bytes. A domain with a hundred devices has a tenth of that."""
DEPTH_MAX: Final = 64
TEXT_MAX: Final = 4096
"""Characters of an element or an attribute that are read."""


class DomainReader:
    """Calls methods of a subclass for each element of a definition (``<domain>``) or a status
    (``<domstatus>``), and builds no tree.

    Paths consist of names below ``<domain>``, as ``devices/interface``; the domain itself has the
    empty path. A name in a namespace follows its URI and a space.
    """

    def __init__(self) -> None:
        self.root = ""
        self._path: list[str] = []

    def read(self, data: bytes) -> None:
        """Read a whole file.

        :raises DomainError: the file is not a domain, too large or too deep.
        """
        if len(data) > SIZE_MAX:
            raise DomainError(cause=f"larger than {SIZE_MAX} bytes")
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise DomainError(cause=str(error)) from error
        except (UnicodeError, LookupError, ValueError) as error:  # an unknown encoding
            raise DomainError(cause=f"{type(error).__name__}: {error}") from error

    def started(self, path: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an element."""

    def ended(self, path: str) -> None:
        """Handle the end of an element."""

    def text(self, path: str, text: str) -> None:
        """Handle a part of the text of an element."""

    def _inside(self) -> str | None:
        """Return the path below ``<domain>``; None outside it."""
        depth = 2 if self.root == "domstatus" else 1
        if len(self._path) < depth or self._path[depth - 1] != "domain":
            return None
        return "/".join(self._path[depth:])

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path:
            if tag not in ("domain", "domstatus"):
                raise DomainError(cause=f"its root element is {tag}")
            self.root = tag
        if len(self._path) >= DEPTH_MAX:
            raise DomainError(cause=f"deeper than {DEPTH_MAX} elements")
        self._path.append(tag)
        path = self._inside()
        if path is not None:
            self.started(path, attributes)

    def _end(self, _tag: str) -> None:
        path = self._inside()
        if path is not None:
            self.ended(path)
        self._path.pop()

    def _text(self, text: str) -> None:
        path = self._inside()
        if path is not None:
            self.text(path, text)

    def _doctype(self, *_declaration: Any) -> None:
        raise DomainError(cause="it has a document type, which libvirt never writes")
