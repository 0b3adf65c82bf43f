"""The interface of identity sources.

Trust: OVSDB, libvirt and the store belong to the host. Neutron's ``device_id`` does not: the owner
of a port may set it to any instance's id. A lookup of *that* instance's project elsewhere would
disclose its metadata (CVE-2013-6419). So an instance that only Neutron names is *unverified*: no
source looks up its project by the instance, and the backend checks that the project found for the
port is the instance's.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from dfmeta import metrics, model

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
class PortQuery:
    """A port with its known fields, and the minimum freshness of the answer."""

    port: model.Port
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

    def find(self, question: PortQuery) -> Ownership:
        """Return the known fields; may wait, but never blocks the hub.

        :raises SourceError: when the source cannot answer.
        """
