"""A domain's XML should give whose it is and which ports are its own, or nothing at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.errors import DomainError
from dfmeta.model import Port
from dfmeta.sources.domain import SIZE_MAX, Domain, DomainNic, match, parse
from tests.harness.domains import NOVA, Interface, definition, status

A = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
B = "7a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
PROJECT = "5f0c0a52b6f44d12a8a1e1a5e5f0c0a5"
PORT_ID = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
OTHER_ID = "1a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
MAC = "fa:16:3e:00:00:01"
PORT = Port(name="tap0", row="r", ofport=1, iface_id=PORT_ID, mac=MAC)
BOMB = (
    '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    f"<domain><uuid>{A}</uuid><name>&b;</name></domain>"
)
OUTSIDE = (
    '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
    f"<domain><uuid>{A}</uuid><name>&a;</name></domain>"
)


def test_novas_names_are_read_from_a_definition() -> None:
    nic = Interface(dev="tap0", iface_id=PORT_ID, mac=MAC.upper())
    text = definition(A.upper(), project=PROJECT, name="web &amp; db", interfaces=[nic])
    nics = (DomainNic(MAC, "tap0", PORT_ID),)
    assert parse(text.encode()) == Domain(A, False, "web & db", PROJECT, nics, "instance-00000001")


def test_the_older_namespace_counts_and_a_foreign_one_does_not() -> None:
    older = definition(A, project=PROJECT, nova=NOVA.replace("1.1", "1.0"))
    foreign = definition(A, project=PROJECT, name="x", nova="http://example.org/")
    assert parse(older.encode()).project_id == PROJECT
    assert parse(foreign.encode()).ownership.project_id == ""
    assert parse(foreign.encode()).name == "instance-00000001"
    active = parse(status(definition(A, project=PROJECT)).encode())
    assert (active.active, active.instance_id, active.project_id) == (True, A, PROJECT)
    # A vhost-user port is called after its socket.
    nic = "<interface type='vhostuser'><source type='unix' path='/run/vhu0'/></interface>"
    text = f"<domain><uuid>{A}</uuid><devices>{nic}</devices></domain>"
    assert parse(text.encode()).nics == (DomainNic(dev="vhu0"),)


NO_DOMAINS = [
    (b"", "no element"),
    (b"<domain/>", "no domain/uuid"),
    (f"<domstatus><uuid>{A}</uuid></domstatus>".encode(), "no domain/uuid"),
    (f"<domain><uuid>{A}x</uuid></domain>".encode(), "no domain/uuid"),
    (BOMB.encode(), "document type"),
    (OUTSIDE.encode(), "document type"),
    (b"<domain>" + b"<a>" * 70, "deeper"),
    (b" " * (SIZE_MAX + 1), "larger"),
    (b"<?xml version='1.0' encoding='nonsense'?><domain/>", "encoding"),
    (definition(A)[:-20].encode(), "no element"),
]


def test_bytes_that_are_no_domain_are_refused() -> None:
    for data, cause in NO_DOMAINS:
        with pytest.raises(DomainError) as caught:
            parse(data)
        assert cause in str(caught.value) or "not well-formed" in str(caught.value), data[:60]


def test_no_project_that_could_not_stand_in_a_header_is_taken() -> None:
    text = definition(A, project="a&#10;X-Instance-ID: b")
    assert parse(text.encode()).project_id == ""


@given(st.integers(0, 600), st.binary(min_size=1, max_size=4))
def test_a_damaged_file_gives_values_or_nothing(place: int, junk: bytes) -> None:
    nic = Interface(dev="tap0", iface_id=PORT_ID, mac=MAC)
    whole = status(definition(A, project=PROJECT, name="n", interfaces=[nic])).encode()
    try:
        domain = parse(whole[:place] + junk + whole[place + len(junk) :])
    except DomainError:
        return
    assert domain.instance_id
    assert domain.name.isprintable()


def running(instance: str, *nics: DomainNic) -> Domain:
    return Domain(instance, active=True, nics=nics)


def test_the_ports_id_decides() -> None:
    expected, other = (
        running(A, DomainNic(MAC, "x", PORT_ID)),
        running(B, DomainNic(MAC, "tap0", OTHER_ID)),
    )
    assert match(PORT, [expected, other]) is expected
    # Its device was taken over, its MAC is somebody else's too: neither is enough.
    assert match(PORT, [other]) is None


def test_a_domain_is_on_its_port_while_it_runs_and_not_on_a_vlan_behind_it() -> None:
    domain = running(A, DomainNic(MAC, "tap0", PORT_ID))
    assert match(PORT, [domain]) is not None
    assert match(PORT, [replace(domain, active=False)]) is None
    assert match(replace(PORT, vid=100), [domain]) is None
    assert match(replace(PORT, vid=100, iface_id=""), [running(A, DomainNic(MAC, "tap0"))]) is None


def test_a_device_counts_with_its_mac() -> None:
    assert match(PORT, [running(A, DomainNic(MAC, "tap0"))]) is not None
    assert match(PORT, [running(A, DomainNic("fa:16:3e:00:00:02", "tap0"))]) is None
    assert (
        match(replace(PORT, iface_id=""), [running(A, DomainNic(MAC, "tap0", OTHER_ID))])
        is not None
    )


def test_a_port_behind_a_bridge_of_its_own_has_the_same_id_in_its_name() -> None:
    hybrid = replace(PORT, name=f"qvo{PORT_ID[:11]}")
    assert match(hybrid, [running(A, DomainNic(MAC, f"tap{PORT_ID[:11]}"))]) is not None
    assert match(hybrid, [running(A, DomainNic(MAC, f"tap{OTHER_ID[:11]}"))]) is None
    assert match(replace(hybrid, iface_id=""), [running(A, DomainNic(MAC, "tap"))]) is None


def test_a_mac_alone_counts_only_where_there_is_nothing_else() -> None:
    assert match(PORT, [running(A, DomainNic(MAC))]) is not None
    assert match(PORT, [running(A, DomainNic(MAC)), running(B, DomainNic(MAC))]) is None
    assert match(PORT, [running(A, DomainNic(MAC, "tap9"))]) is None
    assert match(replace(PORT, mac=""), [running(A, DomainNic(""))]) is None


def test_two_guests_that_claim_one_port_are_nobody() -> None:
    nic = DomainNic(MAC, "tap0", PORT_ID)
    assert match(PORT, [running(A, nic), running(B, nic)]) is None
    assert match(PORT, [running(A, nic), running(A, nic)]) is not None
