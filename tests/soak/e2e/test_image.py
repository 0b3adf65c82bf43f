"""The image, built from local files, should serve guests beside a switch in a container."""

import re
import shlex
import subprocess
from collections import Counter
from typing import Self

import yaml

from tests.core.docs.typed import page
from tests.harness import netns
from tests.harness.activator import Activator
from tests.harness.agent import Agent, program
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Batch, Guest
from tests.harness.netns import ROOT
from tests.harness.ovn import Central, Chassis
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.support import failures
from tests.host.e2e.test_activation import AGENT
from tests.host.e2e.test_units import UNITS, check_sandbox, said_nothing_of_it
from tests.host.ovn.cloud import Network, plug
from tests.soak.e2e.runtimes import CONTAINERS_CONF, PLUGGED

SAMPLES = ROOT / "etc/container"
DEFAULTS = dict.fromkeys(("ovsdb_connection", "state_path", "libvirt_xml_path"))
PAGE = page("install")
(BUILD,) = re.findall(r"^ +(mmdebstrap .*\n +podman build .*)$", PAGE, re.MULTILINE)
(CLEAN_UP,) = re.findall(r"^ +(podman run (?:.*\\\n)+.*)$", PAGE, re.MULTILINE)
# Without control groups, and with the certificates that this machine trusts.
PODMAN_BUILD = """podman build --isolation=chroot --network=host -v /etc/pip.conf:/etc/pip.conf:ro \
    -v /etc/ssl/certs/ca-certificates.crt:/etc/pip.crt:ro"""
# Nothing of the machine changes. podman and its libraries may be those of another release.
SETUP = """
cp -a /etc "$0/etc"
mkdir -p "$0/etc/dfmeta" "$0/etc/containers" "$0/etc/kolla/dfmeta-agent" "$0/lib"
mkdir -m 0700 "$0/lib/dfmeta"
mount --bind "$0/etc" /etc
mount --bind "$0/lib" /var/lib
mount -t tmpfs none /run
mkdir /run/openvswitch /run/libvirt
mount --bind "$3" /run/openvswitch
mount -t cgroup2 none /sys/fs/cgroup
mount -t overlay -o "lowerdir=$1/usr:/usr" none /usr
cp "$0/dfmeta.conf" /etc/dfmeta
printf '%s' "$2" >/etc/containers/containers.conf
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
printf '[global]\\ncert = /etc/pip.crt\\n' >/etc/pip.conf
echo ready
exec sleep infinity
"""
# kolla's own programs, and what its base image has beside them.
KOLLA = """
cp /etc/dfmeta/dfmeta.conf /etc/kolla/dfmeta-agent
mkdir /etc/kolla/bin
cd /etc/kolla/bin
"$0" download --quiet --no-deps kolla==23.0.0
python3 -m zipfile -e kolla-*.whl .
mv kolla/docker/base/start.sh kolla_start
mv kolla/docker/base/set_configs.py kolla_set_configs
echo '[ "$1" != -E ] || shift; PATH=/opt/dfmeta/bin:$PATH exec "$@"' >sudo
touch kolla_copy_cacerts kolla_install_projects kolla_extend_start
chmod 755 kolla_* sudo
"""

# Open vSwitch of the image's release, as an upgrade starts it with the database of an older one.
SWITCH_IMAGE = """FROM localhost/debian
RUN apt-get update && apt-get install -y --no-install-recommends openvswitch-switch
"""
SWITCH = """
cd /run/openvswitch
ovsdb-tool convert conf.db
ovsdb-server --detach --pidfile --remote=punix:$PWD/db.sock --unixctl=$PWD/ovsdb-server.ctl conf.db
exec ovs-vswitchd --pidfile --unixctl=$PWD/ovs-vswitchd.ctl unix:$PWD/db.sock
"""


class Contained(Agent):
    """The daemon in a container: ``podman run`` in the foreground, with mounts of its own."""

    def __init__(self, host: OpenvSwitch) -> None:
        super().__init__(host, {"df_metadata": DEFAULTS})
        self.words = [""]
        config = CONTAINERS_CONF.format(programs="/usr/bin", backend="")
        config = config.replace('seccomp_profile = "unconfined"', "").replace("1024", "16384")
        words = ["sh", "-euc", SETUP, self.folder, PLUGGED, config, host.rundir]
        outer = ["unshare", "--mount", *map(str, words)]
        self._machine = netns.spawn(outer, stdout=subprocess.PIPE)
        assert self._machine.stdout is not None
        with self._machine.stdout as out:
            assert out.readline() == b"ready\n"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs *words* in the mount namespace."""
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        return ["nsenter", f"--mount=/proc/{self._machine.pid}/ns/mnt", "env", path, *words]

    def type(self, *words: str) -> str:
        """Run a command there, and return its output."""
        # mmdebstrap signals its whole group when it fails.
        return netns.run(self.command("setsid", "--wait", *words), timeout=10 * DEADLINE).stdout

    def contain_switch(self, host: OpenvSwitch) -> None:
        """Replace both daemons of the host by a container."""
        build = f"{PODMAN_BUILD} -t localhost/openvswitch -f - . <<END\n{SWITCH_IMAGE}END\n"
        self.type("sh", "-euc", f"cd {self.folder}/lib; {build}")
        for daemon in ("ovs-vswitchd", "ovsdb-server"):
            host.stop(daemon)
        start = "podman run --detach --name=openvswitch --privileged --network=host"
        volume = "--volume=/run/openvswitch:/run/openvswitch"
        words = ["localhost/openvswitch", "sh", "-euc", SWITCH]
        host.namespace.run(self.command(*start.split(), volume, *words))
        wait_for(lambda: host.mgmt_socket("br-int").exists(), "the bridge")

    def start(self, *, wait: bool = True) -> Self:
        """See :class:`Agent`."""
        self._spawn(self.command("podman", "run", *self.words))
        self.wait_ready()
        return self

    def close(self) -> None:
        """End the containers, and remove the files."""
        if self._machine.poll() is None:
            self.type("podman", "rm", "--all", "--force", "--time=0")
            netns.end(self._machine)
        super().close()

    def serves(self, guest: Guest, container: str) -> None:
        """It gives the guest its own document, and refuses no connection over restarts."""
        self.start()
        put = ("store", "put", guest.instance_id, "--hostname", guest.name)
        for words in (("dfmeta", *put), ("dfmeta", "doctor"), ("healthcheck_dfmeta",)):
            self.type("podman", "exec", container, *words)
        batch = guest.start_many(1_000_000, 5, path="/latest/meta-data/hostname", interval=0.5)
        for end in (self.restart, self.restart, lambda: None):
            goes_on(batch)
            end()
        assert failures({guest: batch.finish()}) == Counter()
        said_nothing_of_it(self.log())


def goes_on(batch: Batch) -> None:
    before = batch.answered
    wait_for(lambda: batch.answered > before + 10, "more answers")


def sample(name: str) -> str:
    text = (SAMPLES / name).read_text().replace("{{ node_config_directory }}", "/etc/kolla")
    return text.replace("{{ container_config_directory }}", "/var/lib/kolla/config_files")


def test_samples_serve_beside_ovn(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    with Central() as central, Chassis(host, central, name="compute1", address="127.0.0.1"):
        guest = plug(make_guest, Network(central, "red"), "one", mac="fa:16:3e:00:00:05")
        agent = Contained(host)
        agent.type("sh", "-euc", f"cd {ROOT}; {BUILD.replace('podman build', PODMAN_BUILD)}")
        agent.contain_switch(host)
        units = ("env", f"QUADLET_UNIT_DIRS={SAMPLES}", "/usr/libexec/podman/quadlet", "-dryrun")
        (start,) = re.findall(
            "^ExecStart=/usr/bin/podman run (.*)", agent.type(*units), re.MULTILINE
        )
        start = start.replace("%t/%N", "/run/agent").replace("--cgroups=split", "")
        agent.words = [word for word in shlex.split(start) if word != "-d"]
        with Activator(host.namespace, AGENT) as agent.activator:
            agent.serves(guest, "dfmeta-agent")
            pid = agent.type("podman", "inspect", "--format={{.State.Pid}}", "dfmeta-agent")
            check_sandbox(int(pid), UNITS / "dfmeta-agent.service")
            agent.stop()
        agent.activator = None
        host.namespace.run(agent.command("sh", "-euc", CLEAN_UP))
        assert "tap-metadata" not in host.ports()
        assert not host.flows(match="cookie=0x64666d6500000000/0xffffffff00000000")

        agent.type("sh", "-euc", KOLLA, *program("pip"))
        text = sample("dfmeta-agent.json.j2")
        (agent.folder / "etc/kolla/dfmeta-agent/config.json").write_text(text)
        kolla = yaml.safe_load(sample("kolla-ansible.yml"))
        service = kolla["dfmeta_services"]["dfmeta-agent"]
        volumes = [*kolla["dfmeta_agent_default_volumes"], "/etc/kolla/bin:/usr/local/sbin"]
        agent.words = ["--rm", "--network=host", "--env=KOLLA_CONFIG_STRATEGY=COPY_ALWAYS"]
        agent.words += [
            f"--privileged={service['privileged']}",
            *(f"-v={item}" for item in volumes),
        ]
        agent.words += ["--name", service["container_name"], "localhost/dfmeta", service["command"]]
        agent.serves(guest, service["container_name"])
        agent.stop()
