"""The interface of identity sources, and the merge of several answers into one port. Pure.

The order decides: a value comes from the first source that has one, and later sources fill the
missing fields. If a source names another instance than the sources before it, its whole answer is
ignored, because its project and name belong to that other instance.

Trust: OVSDB, libvirt and the store belong to the host. Neutron's ``device_id`` does not: the owner
of a port may set it to any instance's id. A lookup of *that* instance's project elsewhere would
disclose its metadata (CVE-2013-6419). So an instance that only Neutron names is *unverified*: no
source looks up its project by the instance, and the backend checks that the project found for the
port is the instance's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from dfmeta import metrics
from dfmeta.model import Port

INSTANCE: Final = "instance_id"
PROJECT: Final = "project_id"
NAME: Final = "instance_name"
FIELDS: Final = (INSTANCE, PROJECT, NAME)
PORT_PROJECT: Final = "port_project"
NEEDED: Final = frozenset({INSTANCE, PROJECT, PORT_PROJECT})
"""Fields that are queried again while they are unknown; the name is queried once."""
OVSDB: Final = "ovsdb"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The fields of a port that a source knows; an empty field is unknown."""

    instance_id: str = ""
    """A UUID with dashes, lower case."""
    project_id: str = ""
    """Project of the instance."""
    instance_name: str = ""
    port_project: str = ""
    """The project that owns the *port*. It is nearly always the instance's project too, but an
    admin may attach a port of the admin's project to any instance. Used only if no source gives the
    instance's project."""


@dataclass(frozen=True, slots=True)
class Question:
    """A port with its known fields, and the minimum freshness of the answer."""

    port: Port
    since: float
    """Monotonic seconds; data that was read earlier is not valid for this port."""

    @property
    def proven(self) -> bool:
        """Whether the port's instance is known from the host itself.

        Only then do the known values of that instance apply to the port.
        """
        return bool(self.port.instance_id) and not self.port.unverified


class Source(Protocol):
    """A source of the instance and project of ports."""

    name: metrics.IdentitySource
    """Name in ``identity_sources``, in metrics and in listings."""
    gives: frozenset[str]
    """Fields of :class:`Ownership` that it may fill."""
    unverified: bool
    """Whether a tenant can write the instances that it names."""
    subports: bool
    """Whether it knows subports of trunks."""
    by_instance: bool
    """Whether it knows instances, not ports. It is queried only when the host gave the instance."""
    timeout: float
    """Seconds after which a query counts as failed."""
    retry: tuple[float, float]
    """Seconds until the next query for a port that it did not know: at first, and at most."""
    recheck: float
    """Seconds between two checks that an instance from this source still exists; 0: no checks."""
    at_once: int
    """Maximum number of simultaneous queries."""

    def find(self, question: Question) -> Ownership:
        """Return the known fields; may wait, but never blocks the hub.

        :raises SourceError: when the source cannot answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """The answer of a source for a port."""

    source: str
    found: Ownership = field(default_factory=Ownership)
    unverified: bool = False


def bare(row: Port) -> Port:
    """Return OVSDB's port without its values of the instance."""
    return replace(
        row, instance_id="", project_id="", instance_name="", unverified=False, sources={}
    )


def merge(row: Port, answers: Sequence[SourceAnswer], *, port_project: bool = False) -> Port:
    """Merge the answers for a port.

    :param row: OVSDB's port. Its values of the instance are used at the position of the answer of
        source ``ovsdb`` in *answers*; the content of that answer is ignored.
    :param answers: answers in order of precedence.
    :param port_project: use the port's own project if no answer gives the instance's.
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
    """Return whether *found* has another instance than *port*."""
    return bool(port.instance_id and found.instance_id) and port.instance_id != found.instance_id


def open_fields(port: Port) -> frozenset[str]:
    """Return the fields that are unknown or provisional."""
    provisional = port.sources.get(PROJECT, "").endswith("(port)")
    return frozenset(
        name for name in FIELDS if not getattr(port, name) or (provisional and name == PROJECT)
    )


def _fill(port: Port, found: Ownership, answer: SourceAnswer) -> Port:
    new = {
        name: value
        for name in FIELDS
        if (value := getattr(found, name)) and not getattr(port, name)
    }
    unverified = answer.unverified if INSTANCE in new else port.unverified
    if found.instance_id and not answer.unverified:
        unverified = False  # the host itself confirms the instance
    sources = {**port.sources, **dict.fromkeys(new, answer.source)}
    return replace(port, **new, unverified=unverified, sources=sources)


def _of_row(row: Port) -> Ownership:
    return Ownership(row.instance_id, row.project_id)
