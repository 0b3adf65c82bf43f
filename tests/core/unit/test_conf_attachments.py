"""The networks of containers should be read from their groups, and a wrong one be named."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.attach.drivers.networks import Chosen
from dfmeta.attach.model import Network
from dfmeta.conf import attachments, unknown_options
from dfmeta.conf.values import AGENT, keep_running_values
from dfmeta.errors import ConfigError
from dfmeta.wiring.attachments import (
    large_shares,
    make_access,
    make_chosen,
    make_networks,
    make_settings,
)

PODS = {"subnet": "10.20.0.0/24", "gateway": "10.20.0.1"}
INSTANCE = "11111111-2222-3333-4444-555555555555"
OTHER = "22222222-3333-4444-5555-666666666666"


Load = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file of these groups."""

    def load(**groups: dict[str, object]) -> cfg.ConfigOpts:
        lines = []
        for name, values in groups.items():
            group = name if name in ("attachments", "df_metadata") else f"attachment_network:{name}"
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in values.items())]
        path = tmp_path / "dfmeta.conf"
        path.write_text("\n".join(lines))
        return dfmeta.conf.load([str(path)], prog="dfmeta-agent")

    return load


def test_networks_are_read_by_name(load: Load) -> None:
    full = {**PODS, "local_vlan": 7, "mtu": 1400, "dns": "192.0.2.53, 2001:db8::1"}
    conf = load(attachments={"enabled": True}, pods=full, bare={"subnet": "10.20.0.0/16"})
    assert make_networks(conf) == {
        "bare": Network(name="bare", subnet=IPv4Network("10.20.0.0/16")),
        "pods": Network(
            name="pods",
            subnet=IPv4Network("10.20.0.0/24"),
            gateway=IPv4Address("10.20.0.1"),
            local_vlan=7,
            mtu=1400,
            dns=("192.0.2.53", "2001:db8::1"),
        ),
    }


def test_networks_have_lists_and_quotas_of_their_own(load: Load) -> None:
    conf = load(
        attachments={"enabled": True, "allow": OTHER},
        pods={**PODS, "allow": INSTANCE, "quota": 9},
        none={"subnet": "10.21.0.0/24", "allow": ""},
        bare={"subnet": "10.22.0.0/24"},
    )
    found = make_access(conf)
    assert {name: INSTANCE in ids for name, ids in found.networks.items()} == {
        "pods": True,
        "none": False,
    }
    assert OTHER in found.default
    assert {name: network.quota for name, network in make_networks(conf).items()} == {
        "bare": None,
        "none": None,
        "pods": 9,
    }


def test_network_of_which_one_vm_may_take_half_is_large(load: Load) -> None:
    for quota, own, large in ((256, None, True), (256, 127, True), (256, 126, False), (9, 200, 0)):
        conf = load(
            attachments={"enabled": True, "quota": quota},
            pods={**PODS, **({"quota": own} if own else {})},
        )
        shares = large_shares(make_networks(conf).values(), make_settings(conf))
        assert bool(shares) == large, (quota, own)


def test_limits_are_read(load: Load) -> None:
    found = make_settings(load(attachments={"vid_range": "5:6", "quota": 3, "rate": 2}))
    assert (found.vids, found.quota, found.rate) == (range(5, 7), 3, 2)
    assert (found.rest, found.rest_unknown, found.grace, found.gc_min_age) == (10, 120, 600, 60)


def test_attachments_are_instances_if_they_can_have_records(load: Load) -> None:
    assert make_settings(load()).instances
    for name, value in (("subport_identity", "parent"), ("backend", "nova")):
        conf = load()
        conf.set_override(name, value, "df_metadata")
        assert not make_settings(conf).instances


def test_ids_are_allowed_in_both_forms(load: Load) -> None:
    plain = INSTANCE.replace("-", "")
    for text in (INSTANCE, plain, f"{plain.upper()},"):
        assert attachments.allowed(load(attachments={"allow": text}).attachments) == {
            INSTANCE,
            plain,
        }
    assert attachments.allowed(load().attachments) == frozenset()


WRONG: list[tuple[dict[str, object], str]] = [
    ({}, "subnet"),
    ({"subnet": "10.20.0.1/24"}, "subnet"),
    ({"subnet": "10.20.0.0/31"}, "subnet"),
    ({"subnet": "0.0.0.0/0"}, "subnet"),
    ({"subnet": "224.0.0.0/24"}, "subnet"),
    ({"subnet": "169.254.0.0/16"}, "subnet"),
    ({"subnet": "fd00::/64"}, "subnet"),
    ({**PODS, "gateway": "10.21.0.1"}, "gateway"),
    ({**PODS, "gateway": "10.20.0.0"}, "gateway"),
    ({**PODS, "gateway": "10.20.0.255"}, "gateway"),
    ({**PODS, "gateway": "here"}, "gateway"),
    ({**PODS, "local_vlan": 4095}, "local_vlan"),
    ({**PODS, "mtu": 575}, "mtu"),
    ({**PODS, "mtu": 9217}, "mtu"),
    ({**PODS, "dns": "example.org"}, "dns"),
]


def test_a_wrong_value_of_a_network_is_named(load: Load) -> None:
    for network, option in WRONG:
        with pytest.raises(ConfigError) as caught:
            load(pods=network)
        assert caught.value.fields["option"] == f"[attachment_network:pods] {option}", network
        assert caught.value.remedy or caught.value.fields["remedy"]
        assert "\n" not in str(caught.value)


NEUTRONS = {"neutron_network": INSTANCE, "neutron_subnet": INSTANCE.replace("-", "").upper()}


OF_THE_OTHER_DRIVER: list[tuple[str, dict[str, object], str, str]] = [
    ("local", {**PODS, "neutron_network": INSTANCE}, "neutron_network", "no effect"),
    ("local", {**PODS, "neutron_subnet": INSTANCE}, "neutron_subnet", "no effect"),
    ("local", {**PODS, "security_groups": INSTANCE}, "security_groups", "no effect"),
    ("neutron", {**NEUTRONS, "subnet": "10.20.0.0/24"}, "subnet", "no effect"),
    ("neutron", {**NEUTRONS, "gateway": "10.20.0.1"}, "gateway", "no effect"),
    ("neutron", {**NEUTRONS, "local_vlan": 0}, "local_vlan", "no effect"),
    ("neutron", {**NEUTRONS, "mtu": 1500}, "mtu", "no effect"),
    ("neutron", {**NEUTRONS, "dns": ""}, "dns", "no effect"),
    ("neutron", {}, "neutron_network", "has to have one"),
    ("neutron", {"neutron_network": INSTANCE}, "neutron_subnet", "has to have one"),
    ("neutron", {**NEUTRONS, "neutron_network": "pods"}, "neutron_network", "not the id"),
    ("neutron", {**NEUTRONS, "neutron_subnet": "10.0.0.0/8"}, "neutron_subnet", "not the id"),
    ("neutron", {**NEUTRONS, "security_groups": "open"}, "security_groups", "not the id"),
]


def test_a_network_has_the_options_of_its_driver(load: Load) -> None:
    for driver, network, option, cause in OF_THE_OTHER_DRIVER:
        with pytest.raises(ConfigError, match=cause) as caught:
            load(attachments={"driver": driver}, pods=network)
        assert caught.value.fields["option"] == f"[attachment_network:pods] {option}", network
        assert caught.value.fields["remedy"]


def test_networks_of_neutron_are_read_by_name(load: Load) -> None:
    conf = load(
        attachments={"enabled": True, "driver": "neutron"},
        pods={**NEUTRONS, "security_groups": f"{OTHER},{INSTANCE}"},
        # The same subnet twice, as with other security groups.
        bare=NEUTRONS,
    )
    assert make_chosen(conf) == {
        "pods": Chosen(INSTANCE, INSTANCE, (OTHER, INSTANCE)),
        "bare": Chosen(INSTANCE, INSTANCE),
    }
    assert attachments.uses_neutron(conf)
    assert not attachments.uses_neutron(load(attachments={"driver": "neutron"}, pods=NEUTRONS))


def test_a_network_needs_a_name(load: Load) -> None:
    for name in ("", "Pods", "a b", " pods", "-a", "n" * 64):
        with pytest.raises(ConfigError, match="not the name of a network"):
            load(**{name: PODS})


def test_networks_of_one_vlan_have_different_subnets(load: Load) -> None:
    one: dict[str, object] = {"local_vlan": 7, "subnet": "10.20.0.0/24"}
    for change in ({"local_vlan": 8}, {"subnet": "10.21.0.0/24"}):
        load(one=one, other={**one, **change})
    for change in ({}, {"subnet": "10.20.0.0/16"}):
        with pytest.raises(ConfigError, match=r"\[attachment_network:one\] has the same") as caught:
            load(one=one, other={**one, **change})
        assert caught.value.fields["option"] == "[attachment_network:other] local_vlan"


def test_attachments_need_network_and_wsgi(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no network of containers"):
        load(attachments={"enabled": True})
    monkeypatch.setattr(dfmeta.conf.haproxy, "check", lambda _conf: None)
    haproxy = {"engine": "haproxy"}
    with pytest.raises(ConfigError, match="engine = haproxy"):
        load(attachments={"enabled": True}, pods=PODS, df_metadata=haproxy)
    load(pods=PODS, df_metadata=haproxy)


def test_an_unknown_option_of_a_network_is_told(load: Load) -> None:
    (found,) = unknown_options(load(pods={**PODS, "mut": 1}))
    assert found.fields["what"] == "[attachment_network:pods] mut"
    assert found.remedy == "Did you mean mtu?"


def test_changed_networks_are_among_the_reloaded(load: Load) -> None:
    before = load(same=PODS, gone={"subnet": "10.21.0.0/24"}, pods={"subnet": "10.22.0.0/24"})
    now = load(same=PODS, new={"subnet": "10.23.0.0/24"}, pods={"subnet": "10.24.0.0/24"})
    names = [f"[attachment_network:{name}]" for name in ("gone", "new", "pods")]
    assert list(keep_running_values(now, before, daemon=AGENT).taken) == names
    assert attachments.networks(now).keys() == {"same", "new", "pods"}
    again = load(attachments={"enabled": True, "quota": 5}, same=PODS)
    changes = keep_running_values(again, load(same=PODS), daemon=AGENT)
    assert changes.taken == ("[attachments] quota",)
    assert changes.waiting == ("[attachments] enabled",)
