"""What an identity source is, and how the answers of several make one port. Pure.

Order wins: a value comes from the first source that had one, and each later one fills in what is
still open. A source that names another instance than the ones before it is not believed in
anything: its project and its name are that other instance's.

Trust: OVSDB, libvirt and the store are the host's own. Neutron's ``device_id`` is not: the owner of
a port may write any instance's id into it, and who took the project of *that* instance from
elsewhere would give its metadata away (CVE-2013-6419). So an instance that only Neutron names is
*claimed*: nobody looks up the project by it, and whoever answers the guest checks that the project
which was found for the port is the instance's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import UUID

from dfmeta import metrics
from dfmeta.model import Port

INSTANCE: Final = "instance_id"
PROJECT: Final = "project_id"
NAME: Final = "instance_name"
FIELDS: Final = (INSTANCE, PROJECT, NAME)
PORT_PROJECT: Final = "port_project"
NEEDED: Final = frozenset({INSTANCE, PROJECT, PORT_PROJECT})
"""What is asked for again while it is not known; a name is asked for once."""
OVSDB: Final = "ovsdb"
NAME_MAX: Final = 255
_PROJECT: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a source knows of a port; empty: not known."""

    instance_id: str = ""
    """A UUID with dashes, lower case."""
    project_id: str = ""
    """The instance's."""
    instance_name: str = ""
    port_project: str = ""
    """The project that owns the *port*: nearly always the instance's too, but an admin may plug a
    port of his own into anybody's instance. Used when nothing else gives the project."""


@dataclass(frozen=True, slots=True)
class Question:
    """A port, as far as it is known, and how fresh the answer has to be."""

    port: Port
    since: float
    """Monotonic seconds: nothing that was read before says anything about this port."""

    @property
    def proven(self) -> bool:
        """Whether the port's instance is known from the host itself, so that what is known of
        that instance is true of the port."""
        return bool(self.port.instance_id) and not self.port.unverified


class Source(Protocol):
    """Somebody who may know whose a port is."""

    name: metrics.IdentitySource
    """As in ``identity_sources``, in metrics and in listings."""
    gives: frozenset[str]
    """Fields of :class:`Ownership` that it may fill."""
    unverified: bool
    """Its instances are a tenant's word."""
    by_instance: bool
    """It knows instances, not ports: asked only when the instance is known from the host."""
    timeout: float
    """Seconds until it counts as failed."""
    retry: tuple[float, float]
    """Seconds until it is asked again about a port that it did not know, at first and at most."""
    recheck: float
    """Seconds between two checks that an instance which it named is still there; 0: none."""
    at_once: int
    """How many ports it may be asked about at the same time."""

    def find(self, question: Question) -> Ownership:
        """Say what is known; may wait, but never for the hub's sake.

        :raises SourceError: when it cannot tell.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """What a source said of a port."""

    source: str
    found: Ownership = field(default_factory=Ownership)
    unverified: bool = False


def bare(row: Port) -> Port:
    """OVSDB's port without what it says of the instance."""
    return replace(
        row, instance_id="", project_id="", instance_name="", unverified=False, sources={}
    )


def merge(row: Port, answers: Sequence[SourceAnswer], *, port_project: bool = False) -> Port:
    """Put together what is known of a port.

    :param row: OVSDB's port; what it says of the instance counts where *answers* has an answer of
        the source ``ovsdb``, whatever stands in that.
    :param answers: in the order in which they count.
    :param port_project: take the port's own project where nothing gives the instance's.
    """
    port = bare(row)
    for answer in answers:
        found = _of_row(row) if answer.source == OVSDB else answer.found
        if not contradicts(port, found):
            port = _fill(port, found, answer)
    if port_project and not port.project_id:
        for answer in answers:
            if answer.found.port_project:
                sources = {**port.sources, PROJECT: f"{answer.source} (port)"}
                return replace(port, project_id=answer.found.port_project, sources=sources)
    return port


def contradicts(port: Port, found: Ownership) -> bool:
    """Whether *found* is about another instance than *port*'s."""
    return bool(port.instance_id and found.instance_id) and port.instance_id != found.instance_id


def open_fields(port: Port) -> frozenset[str]:
    """Fields that are not known, or not for certain."""
    provisional = port.sources.get(PROJECT, "").endswith("(port)")
    return frozenset(
        name for name in FIELDS if not getattr(port, name) or (provisional and name == PROJECT)
    )


def instance_of(text: str) -> str:
    """An instance id as it is written everywhere; empty when *text* is no UUID."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return ""


def project_of(text: str) -> str:
    """A project id that may stand in a header; empty when *text* is none."""
    stripped = text.strip()
    return stripped if _PROJECT.fullmatch(stripped) else ""


def name_of(text: str) -> str:
    """A name on one line; its owner chose it, so that anything may stand in it."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * NAME_MAX])
    return " ".join(printable.split())[:NAME_MAX]


def _fill(port: Port, found: Ownership, answer: SourceAnswer) -> Port:
    new = {
        name: value
        for name in FIELDS
        if (value := getattr(found, name)) and not getattr(port, name)
    }
    unverified = answer.unverified if INSTANCE in new else port.unverified
    if found.instance_id and not answer.unverified:
        unverified = False  # what was a claim is confirmed by the host itself
    sources = {**port.sources, **dict.fromkeys(new, answer.source)}
    return replace(port, **new, unverified=unverified, sources=sources)


def _of_row(row: Port) -> Ownership:
    return Ownership(row.instance_id, row.project_id)
