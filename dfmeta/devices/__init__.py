"""Device role tags: the document that tells a guest which of its devices is for what.

A tenant tags a NIC or a disk with a role; the document maps the tag to what the guest can find
the device by (specification 002). Pure, but for the XML that is read. :mod:`dfmeta.devices.model`
has its values, :mod:`dfmeta.devices.schema` its form, :mod:`dfmeta.devices.check` all of its rules,
:mod:`dfmeta.devices.libvirt` fills it from a domain.
"""

from __future__ import annotations

from dfmeta.devices.check import validate, validate_in
from dfmeta.devices.versions import as_of

__all__ = ["as_of", "validate", "validate_in"]
