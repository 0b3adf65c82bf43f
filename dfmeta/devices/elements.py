"""A stream of a libvirt domain's elements. Pure.

Source: libvirt's formatdomain.rst. The files are root's, so they are trusted; that they may be
large, broken or half there is not held against the others. A document type is refused, and with
it every entity of its own: neither a file of the host's nor a billion laughs can be put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from xml.parsers import expat

from dfmeta.exceptions import DomainError

SIZE_MAX: Final = 1 << 20
"""Bytes. A domain with a hundred devices takes a tenth of that."""
DEPTH_MAX: Final = 64


class DomainReader:
    """Tells a subclass of the elements of a definition (``<domain>``) or a status
    (``<domstatus>``), and builds no tree.

    Paths are of names below ``<domain>``, as ``devices/interface``; the domain itself is the empty
    one. A name in a namespace stands after its URI and a blank.
    """

    def __init__(self) -> None:
        self.root = ""
        self._path: list[str] = []

    def read(self, data: bytes, *, encoding: str | None = None) -> None:
        """Go through a file.

        :param encoding: what the file is in, whatever it says; None: what it says.
        :raises DomainError: it is no domain, too large or too deep.
        """
        if len(data) > SIZE_MAX:
            raise DomainError(cause=f"larger than {SIZE_MAX} bytes")
        parser = expat.ParserCreate(encoding, namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise DomainError(cause=str(error)) from error
        except (UnicodeError, LookupError, ValueError) as error:  # an encoding that is none
            raise DomainError(cause=f"{type(error).__name__}: {error}") from error

    def started(self, path: str, attributes: Mapping[str, str]) -> None:
        """Take the start of an element."""

    def ended(self, path: str) -> None:
        """Take its end."""

    def text(self, path: str, text: str) -> None:
        """Take a piece of what stands in it."""

    def _inside(self) -> str | None:
        """Path below ``<domain>``; None elsewhere."""
        depth = 2 if self.root == "domstatus" else 1
        if len(self._path) < depth or self._path[depth - 1] != "domain":
            return None
        return "/".join(self._path[depth:])

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path:
            if tag not in ("domain", "domstatus"):
                raise DomainError(cause=f"its root is {tag}")
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
