"""Fields of Open vSwitch that os-ken does not know, added to os-ken's OpenFlow 1.3.

nd_reserved and nd_options_type (ovs-fields(7), "IPv6 Neighbor Discovery Fields") belong to
Ericsson's class of fields.
"""

from __future__ import annotations

from typing import Any, Final

from os_ken.lib import type_desc
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import oxm_fields

_CLASS: Final = 0x1000
"""ERICOXM_OF of Open vSwitch's meta-flow.xml."""


def _field(name: str, number: int, kind: Any) -> Any:
    """Return a field of that class. os-ken derives the header's number from the class."""
    field = oxm_fields.NiciraExtended1(name, number, kind)
    field._class = _CLASS
    field.oxm_type = field.num = number | _CLASS << 7
    return field


def register() -> None:
    """Add the fields, once."""
    known = {one.name for one in ofp.oxm_types}
    new = [
        _field("nd_reserved", 1, type_desc.Int4),
        _field("nd_options_type", 2, type_desc.Int1),
    ]
    ofp.oxm_types += [one for one in new if one.name not in known]
    oxm_fields.generate(ofp.__name__)
