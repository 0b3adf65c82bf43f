"""Device role tags: the document that shows a guest the roles of its devices.

A tenant tags a NIC or a disk with a role. The document maps the tag to the address, MAC or serial
with which the guest finds the device (specification 002). Pure, except for the XML that is read.
:mod:`dfmeta.devices.schema` has the document's rules; :mod:`dfmeta.devices.libvirt` fills it from a
domain.
"""

from dfmeta.devices.schema import as_of, validate, validate_in

__all__ = ["as_of", "validate", "validate_in"]
