"""A libvirt guest with an unmodified cloud-init should be what its record says.

The domain is that of doc/source/first-hour-libvirt.rst with what an emulated CPU and the userspace
datapath need. User-data has the guest write on its serial line what it has become.
"""

from xml.etree import ElementTree

import pytest

from tests.harness.poll import wait_for
from tests.soak.real.domains import (
    BOOT,
    KEY,
    OTHER_KEY,
    XML,
    another,
    by_recipe,
    reports,
    user_data,
    wait_reports,
)
from tests.soak.real.libvirt import Libvirt

pytestmark = pytest.mark.long

REPORT = user_data(
    """\
say host "$(hostname)"
say key "$(cat /home/debian/.ssh/authorized_keys)"
while :; do
    say asked "$(curl -s -m 5 http://169.254.169.254/latest/meta-data/local-hostname)"
    sleep 2
done
"""
)


@pytest.fixture(scope="module")
def web1(host: Libvirt) -> str:
    """A guest with a record, whose cloud-init has run."""
    name = host.define(host.emulated(XML))
    host.dfmeta(
        *("store", "put", name, "--hostname", "first", "--ssh-key", KEY),
        *("--user-data", host.write("user-data", REPORT)),
    )
    host.virsh("start", name)
    wait_reports(host, name, "asked", 1)
    return name


def test_a_guest_is_what_its_record_says(host: Libvirt, web1: str) -> None:
    assert reports(host, web1, "host") == ["first"]
    assert reports(host, web1, "key") == [KEY]
    (result,) = reports(host, web1, "result")
    assert "DataSourceNoCloudNet [seed=dmi,http://169.254.169.254/nocloud/]" in result
    assert '"errors": []' in result
    assert reports(host, web1, "asked")[0] == "first"
    (port,) = host.ports().values()
    assert (port["state"], port["fault"]) == ("served", "")
    assert port["instance"] in XML


def test_a_guest_that_boots_again_is_served_again(host: Libvirt, web1: str) -> None:
    before = len(reports(host, web1, "host"))
    host.virsh("reboot", web1)
    assert wait_reports(host, web1, "host", before + 1)[-1] == "first"
    request = len(reports(host, web1, "asked"))
    assert wait_reports(host, web1, "asked", request + 1)[-1] == "first"


def test_an_interface_that_is_plugged_again_is_served_again(host: Libvirt, web1: str) -> None:
    interface = ElementTree.fromstring(host.emulated(XML)).find("devices/interface")
    assert interface is not None
    device = host.write("interface.xml", ElementTree.tostring(interface, encoding="unicode"))
    host.virsh("detach-interface", web1, "bridge", "--live")
    wait_for(lambda: not host.ports(), "the port to go", deadline=BOOT, interval=1)
    wait_for(
        lambda: not reports(host, web1, "asked")[-1], "a request without an answer", deadline=BOOT
    )
    host.virsh("attach-device", web1, device, "--live")
    wait_for(
        lambda: reports(host, web1, "asked")[-1] == "first", "an answer", deadline=BOOT, interval=1
    )
    (port,) = host.ports().values()
    assert (port["state"], port["fault"]) == ("served", "")


def test_a_guest_without_a_record_gets_the_defaults(host: Libvirt) -> None:
    options = ("--ssh-key", OTHER_KEY, "--user-data", host.write("user-data", REPORT))
    host.dfmeta("store", "put", "--default", *options)
    with host.alone():
        name = host.define(host.emulated(another("web2", 2)))
        host.virsh("start", name)
        assert wait_reports(host, name, "asked", 1)[0] == name
        assert reports(host, name, "host") == [name]
        assert reports(host, name, "key") == [OTHER_KEY]
        host.remove(name)


@pytest.mark.parametrize(("recipe", "source"), [("OpenStack", "OpenStack"), ("EC2", "Ec2")])
def test_a_recipe_of_the_page_needs_no_seed(host: Libvirt, recipe: str, source: str) -> None:
    with host.alone():
        name = host.define(host.emulated(by_recipe(another(recipe.lower(), 4), recipe)))
        script = host.write("user-data", REPORT)
        host.dfmeta("store", "put", name, "--hostname", f"{name}-host", "--user-data", script)
        host.virsh("start", name)
        assert wait_reports(host, name, "asked", 1)[0] == f"{name}-host"
        assert reports(host, name, "host") == [f"{name}-host"]
        (result,) = reports(host, name, "result")
        assert f"DataSource{source}" in result
        assert '"errors": []' in result
        host.remove(name)


def test_a_guest_that_leaves_out_checksums_is_named(host: Libvirt) -> None:
    with host.alone():
        name = host.define(host.emulated(another("web3", 3), offload=True))
        host.virsh("start", name)
        device = host.device(name)
        wait_for(
            lambda: host.ports().get(device, {}).get("state") == "no connection",
            "the state of the port",
            deadline=BOOT,
            interval=1,
        )
        assert "TcpInCsumErrors" in host.ports()[device]["fault"]
        failing = host.run("dfmeta", "ports", "--failing", check=False).stdout
        assert device in failing
        host.remove(name)
