"""Debian's container runtimes in a VM, unpacked by ``tools/setup.sh --containers``."""

import abc
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from dfmeta.guest.cni import cnm
from tests.harness import cni_file, netns
from tests.harness.closing import Closing
from tests.harness.guest import METADATA_IP
from tests.harness.netns import ROOT
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.container_vm import ContainerVm

UNPACKED = ROOT / ".cache" / "containers"
"""Directory into which tools/setup.sh --containers unpacks the runtimes."""
PLUGGED = ROOT / ".cache" / "podman"
"""The same for a podman whose netavark has plugins."""
PROGRAMS = ":".join(str(UNPACKED / name) for name in ("usr/bin", "usr/sbin", "bin"))
NETWORK = "pods"
"""Name of the runtime's network."""
PORT = 8080
APPLETS = ("sh", "sleep", "wget", "nc", "echo", "hostname")
GROUPS = Path("/sys/fs/cgroup")
# A copy of /etc and mounts on /opt, /run and /var/lib: a runtime writes to none of the machine's.
SETUP = """
cp -a /etc "$0/etc"
mkdir -p "$0/etc/cni/net.d" "$0/opt/cni/bin" "$0/log" "$0/lib" "$0/checkout"
mount --rbind "$2" "$0/checkout"
mount --bind "$0/etc" /etc
mount --bind "$0/opt" /opt
mount --bind "$0/lib" /var/lib
mount -t tmpfs none /run
mkdir -p "$2"
mount --rbind "$0/checkout" "$2"
install -m 0755 "$1" /opt/cni/bin/dfmeta-cni
echo ready
exec sleep infinity
"""
# A plugin of dockerd has its control group below that of dockerd, or beside it (version 2).
JOIN = """
for top in /sys/fs/cgroup /sys/fs/cgroup/*/; do
    mountpoint -q "$top" && [ -e "$top/cgroup.procs" ] || continue
    for group in "$top/$0" "$top/$0/daemon"; do
        mkdir -p "$group"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$top/$file" ] || cat "$top/$file" >"$group/$file"
        done
    done
    echo $$ >"$group/cgroup.procs"
done
exec "$@"
"""


def program(name: str) -> str:
    """Return the path of a program that has been unpacked.

    :raises FileNotFoundError: there is none.
    """
    result = shutil.which(name, path=PROGRAMS)
    if result is None:
        raise FileNotFoundError(f"no {name} under {UNPACKED}: run tools/setup.sh --containers")
    return result


class Runtime(Closing):
    """A runtime in a VM, with mounts and processes of its own.

    A context manager that ends all its containers.
    """

    owner: ClassVar[str] = NETWORK
    """Owner of its attachments."""
    before: ClassVar[str] = ""
    """Commands of the shell before its programs start."""

    def __init__(self, vm: ContainerVm, network: str) -> None:
        """:param network: name of the network on the host."""
        self.vm, self.network = vm, network
        self.folder = netns.temporary_folder("runtime")
        self._stack = contextlib.ExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.group = self.folder.name
        """Control group of its containers."""
        self._stack.callback(wait_for, self._groups_are_gone, "the control groups to be empty")
        try:
            self._make_root()
            unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            words = map(str, (self.folder, cni_file.packed(), ROOT))
            shell = ["sh", "-euc", self.before + SETUP, *words]
            outer = ["nsenter", f"--net=/run/netns/{vm.inside.name}"]
            holder = netns.spawn([*outer, *unshare, *shell], stdout=subprocess.PIPE)
            self._stack.callback(holder.wait)
            self._stack.callback(holder.kill)
            assert holder.stdout is not None
            with holder.stdout as out:
                assert out.readline() == b"ready\n"
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
            self.pid = children.read_text(encoding="ascii").split()[0]
            # unshare(1) ignores SIGTERM. It ends with the last process of the namespace.
            self._stack.callback(holder.wait, DEADLINE)
            self._stack.callback(os.kill, int(self.pid), signal.SIGKILL)
            plugin = vm.config(network=network, name=None, cniVersion=None)
            self.write(
                "/etc/cni/net.d/10-dfmeta.conflist",
                {"cniVersion": "1.0.0", "name": NETWORK, "plugins": [plugin]},
            )
            self._start()
        except BaseException:
            self.close()
            raise

    def _make_root(self) -> None:
        programs = self.folder / "root" / "bin"
        programs.mkdir(parents=True)
        for name in ("proc", "sys", "dev", "etc", "tmp", "run"):
            (self.folder / "root" / name).mkdir()
        shutil.copy(program("busybox"), programs / "busybox")
        for name in APPLETS:
            (programs / name).symlink_to("busybox")

    def _start(self) -> None:
        """Start the runtime's daemon, if it has one."""

    def network_options(self) -> list[str]:
        """Return the keys of the network's configuration as options of ``network create``."""
        plugin = self.vm.config(network=self.network, timeout="60")
        keys = ("network", "link", "bridge", "db", "timeout")
        return [word for key in keys for word in ("-o", f"{key}={plugin[key]}")]

    @property
    def root(self) -> str:
        """The root file system of containers."""
        return str(self.folder / "root")

    def close(self) -> None:
        """End everything, and remove the files."""
        self._stack.close()

    def _groups_are_gone(self) -> bool:
        """Remove the control groups, of each hierarchy, that have no process."""
        hierarchies = [GROUPS, *(path for path in GROUPS.iterdir() if path.is_dir())]
        for top in (hierarchy / self.group for hierarchy in hierarchies):
            for group in [*sorted(top.glob("**/"), reverse=True)] if top.exists() else []:
                with contextlib.suppress(OSError):
                    group.rmdir()
        return not any((hierarchy / self.group).exists() for hierarchy in hierarchies)

    def write(self, path: str, content: object) -> None:
        """Write a file that only the runtime sees: text as it is, else JSON."""
        text = content if isinstance(content, str) else json.dumps(content)
        self.run("sh", "-c", 'cat >"$0"', path, stdin=text)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs *words* beside the runtime."""
        enter = ["nsenter", "-t", self.pid, "--mount", "--pid", "--net"]
        return [*enter, "env", f"PATH={PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin", *words]

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Run a command to its end; return its output."""
        return netns.run(self.command(*words), stdin=stdin).stdout

    def _spawn(self, name: str, *words: str) -> None:
        with open(self.folder / "log" / name, "wb") as log:
            process = netns.spawn(self.command(*words), stdout=log, stderr=log)
        self._stack.callback(netns.end, process)

    # Containers

    @abc.abstractmethod
    def create(self, name: str, *words: str) -> None:
        """Start a container on the network."""

    @abc.abstractmethod
    def process(self, name: str) -> str:
        """Return the id of a container's process."""

    @abc.abstractmethod
    def inside(self, name: str, *words: str) -> str:
        """Run a command in a container; return its output."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Stop and remove a container."""

    def start(self, name: str) -> str:
        """Start a container that tells its name to clients; return its address."""
        self.create(name, "/bin/nc", "-ll", "-p", str(PORT), "-e", "/bin/echo", name)
        return self.address(name)

    def address(self, name: str) -> str:
        """Return the address of a container that runs, after its device can send."""
        device = ["nsenter", "-t", self.process(name), "-n"]
        # The userspace datapath completes no checksums.
        self.run(*device, "ethtool", "-K", "eth0", "tx", "off")
        shown: list[dict[str, Any]] = json.loads(
            self.run(*device, "ip", "-json", "-4", "addr", "show", "eth0")
        )
        return str(shown[0]["addr_info"][0]["local"])

    def get(self, name: str, target: str) -> str:
        """Return the body of a container's request to the metadata service."""
        return self.inside(name, "/bin/wget", "-q", "-O", "-", f"http://{METADATA_IP}{target}")

    def says(self, name: str, address: str) -> str:
        """Return the name that the container at *address* tells another one."""
        return self.inside(name, "/bin/nc", "-w", "5", address, str(PORT)).strip()


class Podman(Runtime):
    """podman with its CNI back end."""

    # It refuses a mixture of both versions of control groups.
    before = "mount -t cgroup2 none /sys/fs/cgroup\n"
    backend: ClassVar[str] = """
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "/etc/cni/net.d"
default_network = "pods"
"""
    programs: ClassVar[Path] = UNPACKED / "usr/bin"

    def _start(self) -> None:
        text = CONTAINERS_CONF.format(programs=self.programs, backend=self.backend)
        self.write("/etc/containers.conf", text)
        storage = 'driver = "vfs"\ngraphroot = "/var/lib/storage"\nrunroot = "/run/storage"\n'
        self.write("/etc/storage.conf", f"[storage]\n{storage}")

    def _podman(self, *words: str) -> str:
        files = [
            "CONTAINERS_CONF=/etc/containers.conf",
            "CONTAINERS_STORAGE_CONF=/etc/storage.conf",
        ]
        return self.run("env", *files, "podman", *words)

    def create(self, name: str, *words: str) -> None:
        """See :class:`Runtime`."""
        self._podman(
            "run", "-d", "--name", name, "--network", NETWORK, "--rootfs", self.root, *words
        )

    def process(self, name: str) -> str:
        """See :class:`Runtime`."""
        return self._podman("inspect", "--format", "{{.State.Pid}}", name).strip()

    def inside(self, name: str, *words: str) -> str:
        """See :class:`Runtime`."""
        return self._podman("exec", name, *words)

    def remove(self, name: str) -> None:
        """See :class:`Runtime`."""
        self._podman("rm", "--force", "--time", "0", name)


class Netavark(Podman):
    """A podman whose netavark has plugins; the network is made as the page says."""

    owner = "podman"
    # Its libraries may be those of another release than this machine's.
    before = Podman.before + f"mount -t overlay -o lowerdir={PLUGGED}/usr:/usr none /usr\n"
    backend = """
network_backend = "netavark"
netavark_plugin_dirs = ["/opt/netavark"]
"""
    programs = Path("/usr/bin")

    def _start(self) -> None:
        super()._start()
        self.run("install", "-D", "-m", "0755", str(cni_file.packed()), "/opt/netavark/dfmeta")
        self._podman("network", "create", "-d", "dfmeta", *self.network_options(), NETWORK)

    def command(self, *words: str) -> list[str]:
        """See :class:`Runtime`: without the programs of another release."""
        return super().command("env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *words)


CONTAINERS_CONF = """
[network]
{backend}
[engine]
runtime = "crun"
runtime_supports_nocgroups = ["crun"]
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = ["{programs}/conmon"]
[engine.runtimes]
crun = ["{programs}/crun"]
[containers]
cgroups = "disabled"
seccomp_profile = "unconfined"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""


class Containerd(Runtime):
    """containerd, and its client ``ctr`` with ``--cni``."""

    def _start(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        config = 'version = 2\nroot = "/var/lib/containerd"\nstate = "/run/containerd"\n'
        config += 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        self.write("/etc/containerd.toml", config)
        self._spawn("containerd", "containerd", "--config", "/etc/containerd.toml")
        wait_for(self._answers, "containerd to answer")

    def _answers(self) -> bool:
        return not netns.run(self.command("ctr", "version"), check=False).returncode

    def create(self, name: str, *words: str) -> None:
        """See :class:`Runtime`."""
        options = ["--rm", "--cni", "--runc-binary", program("runc")]
        options += ["--cgroup", f"/{self.group}/{name}", "--rootfs"]
        # In the foreground: otherwise it does not call DEL.
        command = self.command("ctr", "run", *options, self.root, name, *words)
        self._running[name] = netns.spawn(command)
        self._stack.callback(netns.end, self._running[name])
        wait_for(lambda: self._tasks().get(name), f"{name} to run")

    def _tasks(self) -> dict[str, str]:
        rows = [line.split() for line in self.run("ctr", "task", "ls").splitlines()]
        return {name: number for name, number, state in rows if state == "RUNNING"}

    def process(self, name: str) -> str:
        """See :class:`Runtime`."""
        return self._tasks()[name]

    def inside(self, name: str, *words: str) -> str:
        """See :class:`Runtime`."""
        return self.run("ctr", "task", "exec", "--exec-id", "one", name, *words)

    def remove(self, name: str) -> None:
        """See :class:`Runtime`."""
        self.run("ctr", "task", "kill", "--signal", "KILL", name)
        self._running.pop(name).wait()


class Dockerd(Runtime):
    """dockerd with ``dfmeta-cni --docker`` as the driver of its network."""

    owner = "docker"
    options: ClassVar[tuple[str, ...]] = (
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        *("--storage-driver", "vfs", "--exec-opt", "native.cgroupdriver=cgroupfs"),
    )

    def _start(self) -> None:
        self._spawn("plugin", "/opt/cni/bin/dfmeta-cni", "--docker")
        self._serve()
        driver = ["-d", "dfmeta", "--ipam-driver", "null"]
        self.run("docker", "network", "create", *driver, *self.network_options(), NETWORK)

    def _serve(self) -> None:
        """Start dockerd, and give it the image ``guest``."""
        places = ["--exec-root", "/run/docker/exec", "--cgroup-parent", f"/{self.group}"]
        daemon = ["sh", "-euc", JOIN, self.group, "dockerd"]
        self._spawn("dockerd", *daemon, *self.options, *places)
        wait_for(self._answers, "dockerd to answer")
        tree = subprocess.run(["tar", "-C", self.root, "-c", "."], capture_output=True, check=True)
        subprocess.run(
            self.command("docker", "import", "-", "guest"),
            input=tree.stdout,
            capture_output=True,
            check=True,
        )

    def _answers(self) -> bool:
        return not netns.run(self.command("docker", "version"), check=False).returncode

    def create(self, name: str, *words: str) -> None:
        """See :class:`Runtime`."""
        self.run("docker", "run", "-d", "--name", name, "--network", NETWORK, "guest", *words)

    def process(self, name: str) -> str:
        """See :class:`Runtime`."""
        return self.run("docker", "inspect", "--format", "{{.State.Pid}}", name).strip()

    def inside(self, name: str, *words: str) -> str:
        """See :class:`Runtime`."""
        return self.run("docker", "exec", name, *words)

    def remove(self, name: str) -> None:
        """See :class:`Runtime`."""
        self.run("docker", "rm", "--force", name)


class SwarmNode(Dockerd):
    """dockerd without a network, in a VM whose commands are typed: they make a swarm of it."""

    # runc would make a plugin's group there at the top.
    before = "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified\n"

    def _start(self) -> None:
        self.home = self.folder / "home"
        """Where commands are typed."""
        self.home.mkdir()
        cni_file.pack(self.home / "dfmeta-cni")
        mount = 'mkdir /run/openvswitch; mount --bind "$0" /run/openvswitch'
        self.run("sh", "-euc", mount, str(self.vm.switch.rundir))
        self._serve()

    def save(self, name: str, text: str) -> None:
        """Write a file where commands are typed."""
        (self.home / name).parent.mkdir(exist_ok=True)
        (self.home / name).write_text(text, encoding="utf-8")

    def type(self, command: str) -> str:
        """Return what a command of the shell prints."""
        return self.run("sh", "-euc", f"cd {self.home}; {command}")

    def containers(self) -> list[str]:
        """Return the ids of the containers that run."""
        return self.run("docker", "ps", "--quiet").split()

    def kept(self) -> list[str]:
        """Return the names of the files that the driver keeps."""
        return self.run("ls", cnm.STATE).split()

    def resolved(self, name: str, host: str) -> set[str]:
        """Return the addresses of a host that Docker's resolver tells a container, if any."""
        present = ["nsenter", "-t", self.process(name), "-n"]
        server = self.run(*present, "ss", "-lunH", "src", "127.0.0.11").split()[3]
        request = ["/bin/busybox", "nslookup", "-type=a", host, server]
        command = self.command("docker", "exec", name, *request)
        answer = netns.run(command, check=False).stdout
        return set(re.findall(r"^Address: ([0-9.]+)$", answer, re.MULTILINE))
