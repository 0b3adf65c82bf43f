"""Limits of the engine, and its answer about a VM. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from dfmeta.attach.model import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits of the attachments of each VM. Times are in seconds."""

    vids: range = range(2, 4001)
    """VLAN ids that the engine gives."""
    quota: int = 256
    """Maximum number of attachments of a VM, with those that are being removed."""
    rate: float = 20
    """New attachments of a VM in a second; as many may come at once."""
    rest: float = 10.0
    """How long a VLAN id is not given again after the guest has deleted its device."""
    rest_unknown: float = 120.0
    """The same if the guest may still have the device."""
    grace: float = 600.0
    """How long a VM may be away from this host before its attachments are removed."""
    gc_min_age: float = 60.0
    """Age below which garbage collection leaves an attachment alone."""
    instances: bool = False
    """Whether each new attachment is an instance of its own; see :mod:`dfmeta.attach.records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The attachments of a VM in numbers."""

    ready: bool
    """Whether the VM can get attachments now."""
    cause: str
    """Why it cannot; empty if it can."""
    used: int
    """Its attachments, with those that are being removed."""
    free: int
    """How many more it can make, by its quota and its VLAN ids."""
    quota: int
    networks: tuple[Network, ...]
    """All networks, by name."""
