"""A real cloud-init, booted inside a guest without being installed anywhere.

It runs as PID 1's child in mount, UTS, IPC and PID namespaces of its own, in a root on tmpfs (see
:mod:`tests.harness.cloudinit_runner`): hostname, keys, files and logs of the host do not change.
ds-identify is not run. The only DMI value of a guest is the serial number, which names the seed in
NoCloud mode as ``virsh edit`` would. PID 1's environment has ``product_name=OpenStack Nova``, by
which cloud-init recognises OpenStack in a container.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.harness import netns
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED

SEED = "ds=nocloud-net;s="
"""Text before the seed's URL. From 24.1 on ``ds=nocloud`` works too; earlier releases interpret it
as a seed on a disk, and ignore a seed from the network."""


@dataclass(frozen=True)
class Release:
    """A cloud-init, and a directory with the requests that it imports; None: the host's."""

    unpacked: Path
    requests: Path | None = None
    seed: str = "ds=nocloud;s="
    """Text before the URL of a seed from the network."""


OWN = Release(UNPACKED, seed=SEED)
"""The distribution's own cloud-init; Debian 12's does not know IPv6."""
_RECENT = ROOT / ".cache" / "cloud-init"
_REQUESTS = ROOT / ".cache" / "requests"
RECENT = Release(_RECENT, _REQUESTS / "2.31.0")
"""A cloud-init of 24.2 or later with the requests of Ubuntu 24.04, which opens URLs with a zone."""
RECENT_WITHOUT_ZONES = Release(_RECENT, _REQUESTS / "2.32.3")
"""The same with the requests of Debian 13, which looks up the zone ``25eth0`` of a URL with
``%25eth0`` (https://github.com/psf/requests/issues/6735)."""

NEWEST = Release(ROOT / ".cache" / "newest", _REQUESTS / "2.32.3")
"""The newest cloud-init of Debian, which ``tools/setup.sh --clients`` unpacks."""

INTERPRETER = ("/usr/bin/python3", "-W", "ignore", "-B")
"""Debian's own, with the python3-* packages that cloud-init imports; without warnings: deprecated
code in a release's modules does not concern these tests."""
GUEST = ("/usr/bin/env", "product_name=OpenStack Nova", *INTERPRETER)
"""The same with what cloud-init reads in the environment that PID 1 began with (proc(5))."""
METADATA_URL = "http://169.254.169.254"
_RUNNER = "tests.harness.cloudinit_runner"
_FILES = {
    "keys": "/root/.ssh/authorized_keys",
    "status": "/run/cloud-init/status.json",
    "result": "/run/cloud-init/result.json",
    "instance_id": "/var/lib/cloud/data/instance-id",
    "instance_data": "/run/cloud-init/instance-data.json",
    "user_data": "/var/lib/cloud/instance/user-data.txt",
    "log": "/var/log/cloud-init.log",
    "etc_hostname": "/etc/hostname",
}

Mode = Literal["OpenStack", "Ec2", "NoCloud"]


@dataclass(frozen=True, kw_only=True)
class Boot:
    """The results of a boot.

    ``datasource`` is "OpenStack", "Ec2", "NoCloudNet" or, if none was found, empty or "None".
    ``files`` has the contents of the requested files that exist.
    """

    datasource: str
    instance_id: str
    hostname: str
    authorized_keys: str
    user_data: bytes
    status: dict[str, Any]
    result: dict[str, Any]
    instance_data: dict[str, Any]
    log: str
    output: str
    seconds: float
    files: dict[str, str]

    @property
    def errors(self) -> list[str]:
        """Return the errors in result.json."""
        return list(self.result.get("v1", {}).get("errors", ["no result.json"]))

    @property
    def warnings(self) -> list[str]:
        """Return the lines of the log with warnings or errors."""
        marks = ("[WARNING]", "[ERROR]", "[CRITICAL]", "Traceback")
        return [line for line in self.log.splitlines() if any(mark in line for mark in marks)]


class Booting:
    """A running boot; :meth:`finish` waits for its end."""

    def __init__(
        self,
        namespace: netns.Namespace,
        *,
        mode: Mode = "OpenStack",
        url: str = METADATA_URL,
        files: Iterable[str] = (),
        network: bool = False,
        release: Release = OWN,
    ) -> None:
        """Start the boot.

        :param url: URL of the metadata service; empty: those that cloud-init knows itself, with its
            own timeouts.
        :param files: absolute paths of files in the guest to return.
        :param network: write the network configuration for networkd.
        :raises FileNotFoundError: tools/setup.sh has not run.
        """
        for folder in (release.unpacked, release.requests):
            if folder and not folder.exists():
                raise FileNotFoundError(f"no {folder}: run tools/setup.sh")
        self._files = list(files)
        self._folder = netns.temporary_folder("root")
        order = {
            "folder": str(self._folder),
            "unpacked": str(release.unpacked.resolve()),
            "requests": str(release.requests or ""),
            "serial": f"{release.seed}{url}/nocloud/" if mode == "NoCloud" else "",
            "config": _configuration(mode, url=url, network=network),
            "files": [*_FILES.values(), *self._files],
        }
        self._streams = [os.fdopen(os.memfd_create(name), "w+b") for name in ("in", "out", "err")]
        self._streams[0].write(json.dumps(order).encode())
        self._streams[0].seek(0)
        try:
            self._process = self._start(namespace)
        except BaseException:
            self.close()
            raise

    def _start(self, namespace: netns.Namespace) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr = self._streams
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        return namespace.spawn(
            [*unshare, *GUEST, "-m", _RUNNER],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PYTHONPATH": str(ROOT)},
        )

    def finish(self, limit: float = 120) -> Boot:
        """Wait for the end of the boot, at most ``limit`` seconds."""
        try:
            status = self._process.wait(limit)
            _stdin, stdout, stderr = self._streams
            if status:
                stderr.seek(0)
                message = stderr.read().decode(errors="replace")
                raise netns.CommandError(["cloud-init"], status, "", message)
            stdout.seek(0)
            return self._boot(json.load(stdout))
        finally:
            self.close()

    def close(self) -> None:
        """Kill the boot if it still runs. Idempotent."""
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        for stream in self._streams:
            stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _boot(self, outcome: dict[str, Any]) -> Boot:
        raw = {
            path: base64.b64decode(content)
            for path, content in outcome["files"].items()
            if content is not None
        }
        text = {name: raw.get(path, b"").decode(errors="replace") for name, path in _FILES.items()}
        result = _document(text["result"])
        return Boot(
            datasource=_source(result),
            instance_id=text["instance_id"].strip(),
            hostname=outcome["hostname"],
            authorized_keys=text["keys"],
            user_data=raw.get(_FILES["user_data"], b""),
            status=_document(text["status"]),
            result=result,
            instance_data=_document(text["instance_data"]),
            log=text["log"],
            output="".join(stage["output"] for stage in outcome["stages"]),
            seconds=sum(stage["seconds"] for stage in outcome["stages"]),
            files={path: raw[path].decode(errors="replace") for path in self._files if path in raw},
        )


def _configuration(mode: Mode, *, url: str, network: bool) -> dict[str, Any]:
    """Return cloud.cfg: modules with effects that a test can see, root as the only user, and
    network set-up only with *network*."""
    source: dict[str, Any] = {}
    if url:
        source = {"metadata_urls": [url], "timeout": 10, "max_wait": 30}
    if mode == "OpenStack":
        source["apply_network_config"] = network
    elif mode == "Ec2":
        source["strict_id"] = False
    else:
        # The firmware has the URL of the seed.
        source = {}
    return {
        "datasource_list": [mode],
        "datasource": {mode: source},
        **({} if network else {"network": {"config": "disabled"}}),
        "disable_root": False,
        "preserve_hostname": False,
        "ssh_deletekeys": False,
        "ssh_genkeytypes": ["ed25519"],
        "ssh_publish_hostkeys": {"enabled": False},
        "cloud_init_modules": [
            "write-files",
            "set_hostname",
            "update_hostname",
            "users-groups",
            "ssh",
        ],
        "cloud_config_modules": ["runcmd"],
        "cloud_final_modules": [
            "scripts-vendor",
            "scripts-per-once",
            "scripts-per-boot",
            "scripts-per-instance",
            "scripts-user",
            "final-message",
        ],
        "system_info": {
            "distro": "debian",
            "paths": {"cloud_dir": "/var/lib/cloud/", "templates_dir": "/etc/cloud/templates/"},
            "ssh_svcname": "ssh",
            "network": {"renderers": ["networkd"], "activators": ["networkd"]},
        },
    }


def _source(result: dict[str, Any]) -> str:
    """Return "OpenStack" from "DataSourceOpenStack [net,ver=2]"; empty without a data source."""
    name = result.get("v1", {}).get("datasource") or ""
    return str(name).partition(" ")[0].removeprefix("DataSource")


def _document(text: str) -> dict[str, Any]:
    with contextlib.suppress(json.JSONDecodeError):
        return dict(json.loads(text))
    return {}
