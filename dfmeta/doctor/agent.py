"""The running daemon, as its admin listener describes it to the commands."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Protocol

from dfmeta import errors, model
from dfmeta.doctor.facts import GuestFailure, KnownPort, PathFacts
from dfmeta.identity.key import Keys, MetaKeys
from dfmeta.runtime.clock import ANSWER_TIMEOUT

_ANOTHER: Final = "dfmeta-agent of another version runs: restart it"

_GIVEN: Final = ("instance", "iface_id", "mac", "fault", "project", "instance_name", "vid")
"""Members of a port's row that a :class:`KnownPort` has unchanged."""


class HangsError(errors.NotRunningError):
    """A command needs the daemon, whose process is there and does not answer in time."""

    name = "hangs"
    sentence = "dfmeta-agent, process {pid}, hangs: {cause}. {remedy}"


class AnotherProgramError(errors.NotRunningError):
    """A command needs the daemon, and another program answers at ``admin_listen``."""

    name = "another-program"


class Request(Protocol):
    """A GET request to the admin listener: the status, and the JSON document of the answer."""

    def __call__(self, path: str, *, timeout: float = ...) -> tuple[int, Any]:
        """Send the request.

        :param timeout: seconds.
        :raises HangsError: when the daemon's process is there and does not answer in time.
        :raises AnotherProgramError: when the answer is not JSON.
        :raises NotRunningError: when there is no answer.
        """


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's readiness."""

    running: bool
    ready: bool = False
    missing: tuple[str, ...] = ()
    """The parts that it misses to be ready."""
    cause: str = ""
    """Why the daemon counts as not running."""
    other: bool = False
    """Whether another program answers at admin_listen."""
    hangs: int = 0
    """Process of a daemon that does not answer in time; 0: there is none."""


class Agent:
    """The daemon's answers as values.

    :param address: ``admin_listen``.
    """

    def __init__(self, address: str, request: Request) -> None:
        self._address = address
        self._request = request

    def ask(self, path: str, *, timeout: float = ANSWER_TIMEOUT) -> Any:
        """Return the JSON document at *path*.

        :raises NotRunningError: when there is no answer, or another program answers.
        """
        status, document = self._request(path, timeout=timeout)
        if status != HTTPStatus.OK:
            raise another_program(self._address, f"{path} is answered with {status}")
        return document

    def readiness(self) -> DaemonFacts:
        """Return whether the daemon runs, and the parts that it still misses to be ready."""
        try:
            _status, document = self._request("/healthz/readiness")
            missing = tuple(map(str, document.get("missing", ())))
            return DaemonFacts(running=True, ready=document["status"] == "UP", missing=missing)
        except HangsError as error:
            return DaemonFacts(running=False, cause=str(error), hangs=int(str(error.fields["pid"])))
        except errors.NotRunningError as error:
            other = isinstance(error, AnotherProgramError)
            return DaemonFacts(running=False, cause=error.cause, other=other)
        except (KeyError, AttributeError, TypeError):
            cause = "its answer is not dfmeta-agent's"
            return DaemonFacts(running=False, cause=cause, other=True)

    def version(self) -> str:
        """Return the version of the running daemon; empty if it does not report one."""
        with contextlib.suppress(errors.NotRunningError, KeyError, TypeError):
            return str(self.ask("/version")["version"])
        return ""

    def ports(self, keys: Keys) -> tuple[KnownPort, ...]:
        """Return every guest port as the running daemon knows it.

        :param keys: the key scheme; it learns the owners of the keys.
        :raises NotRunningError: when the daemon does not run.
        """
        rows = self.ask("/ports")
        try:
            ports = tuple(read_port(row, keys) for row in rows)
        except (KeyError, TypeError, ValueError, errors.KeyRangeError) as error:
            cause = "the answer for /ports has an unknown format"
            raise another_program(self._address, cause) from error
        set_owners(keys, ((port.endpoint, slot) for port in ports for slot in port.addresses))
        return ports

    def record_names(self) -> dict[str, tuple[str, ...]]:
        """Return instance → the names in its record, of the instances of this host.

        Empty if the daemon does not run, or has another backend than the store.
        """
        with contextlib.suppress(errors.NotRunningError, AttributeError, TypeError):
            _status, document = self._request("/names")
            return {instance: tuple(map(str, names)) for instance, names in document.items()}
        return {}

    def served_ip6(self) -> tuple[str, ...]:
        """Return the IPv6 addresses at which the running daemon serves guests at this moment.

        Empty if the daemon or the host has no IPv6, and if the daemon does not run.
        """
        with contextlib.suppress(errors.NotRunningError, KeyError, TypeError, ValueError):
            return tuple(str(IPv6Address(address)) for address in self.ask("/service")["ip6"])
        return ()

    def path(self, *, silent: str = "") -> PathFacts:
        """Request a probe of the path to the proxy, and return its result.

        :param silent: why a probe, which the daemon would wait for, would have no answer and show
            nothing about the host; empty: it shows something.
        """
        if silent:
            facts = PathFacts(sent=False, cause=silent)
            return replace(facts, ip6=facts if self.served_ip6() else None)
        try:
            document = self.ask("/probe")
            six = document.get("ip6")
            return replace(_path(document), ip6=None if six is None else _path(six))
        except errors.NotRunningError as error:
            return PathFacts(sent=False, cause=error.cause)
        except (KeyError, TypeError, ValueError, AttributeError):
            return PathFacts(sent=False, cause=_ANOTHER)


def another_program(address: str, cause: str) -> AnotherProgramError:
    """Return the error for an answer that is not the daemon's."""
    remedy = "Another program listens there, or a dfmeta-agent of another version: restart it"
    return AnotherProgramError(address=address, cause=cause, remedy=remedy)


def set_owners(keys: Keys, numbers: Iterable[tuple[model.Endpoint, int]]) -> None:
    """Tell *keys* the owners of all numbers that are in use, where numbers have owners."""
    if isinstance(keys, MetaKeys):
        keys.owners.clear()
    for endpoint, number in numbers:
        keys.own(endpoint, number)


def read_port(row: Mapping[str, Any], keys: Keys) -> KnownPort:
    """Return a port from its row of ``GET /ports``.

    :raises KeyError, TypeError, ValueError, KeyRangeError: for a row of another form.
    """
    return KnownPort(
        row["port"],
        row["ofport"],
        model.PortState(row["state"]),
        addresses={_slot(each, keys): _address(each) for each in row["addresses"]},
        requested=row["requests"] is not None,
        failure=_failure(row["last_failure"]),
        label=row["meta_mac"] or "",
        next_hops=_next_hops(row["next_hops"]),
        next_hop_faults=tuple(row["next_hop_faults"]),
        kind=model.PortKind(row["kind"]),
        segmentation_id=row["segmentation_id"] or 0,
        subport_faults=tuple(row["subport_faults"]),
        binding=model.Binding(row["mac"], IPv4Address(row["source"])) if row["source"] else None,
        **{name: row[name] for name in _GIVEN},
        key=row["key"] or "",
        key6=row["key6"] or "",
        parent=row["parent"] or "",
    )


def _next_hops(rows: Iterable[Mapping[str, Any]] | None) -> tuple[model.NextHop, ...] | None:
    if rows is None:
        return None
    return tuple(model.NextHop(row["ip"], row["mac"] or "", row["source"]) for row in rows)


def _failure(row: Mapping[str, Any] | None) -> GuestFailure | None:
    if row is None or not row["failing"]:
        return None
    since = datetime.fromisoformat(row["failing_since"])
    return GuestFailure(row["status"], row["brief"], row["remedy"], since, row["times"])


def _address(row: Mapping[str, Any]) -> model.GuestAddress:
    ip, service = ip_address(row["ip"]), row.get("service")
    if ip.version == 6:
        return model.GuestAddress(row["mac"], ip, IPv6Address(service))
    return model.GuestAddress(row["mac"], ip)


def _slot(row: Mapping[str, Any], keys: Keys) -> int:
    """Return the slot with the number that the registry uses: listings show another one.

    :raises ValueError: for an address that is not a key.
    """
    slot = keys.number_of(ip_address(row["key"]))
    if slot is None:
        raise ValueError(f"{row['key']} is not a key")
    return slot


def _path(document: Mapping[str, Any]) -> PathFacts:
    return PathFacts(
        sent=bool(document["sent"]),
        answered=bool(document["answered"]),
        cause=str(document["cause"]),
        seconds=float(document["seconds"]),
        whole=bool(document["whole_checksum"]),
    )
