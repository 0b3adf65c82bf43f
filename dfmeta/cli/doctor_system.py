"""``dfmeta doctor``'s checks of the daemon's process, its files and the host's system services."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli import gather
from dfmeta.conf import limits as limit_options
from dfmeta.doctor import checks_process, checks_store, checks_system
from dfmeta.doctor.checks_daemon import Owners
from dfmeta.doctor.checks_process import VersionFacts
from dfmeta.doctor.checks_store import DiskFacts
from dfmeta.doctor.checks_system import ClockFacts, SecretFile
from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding
from dfmeta.host.facts import ProcessFacts
from dfmeta.host.process import read_account, read_sockets
from dfmeta.host.system import own_route, read_clock, read_networkd

OWN_FILES: Final = 256
"""Descriptors in addition to those of guests' connections, see :mod:`dfmeta.cmd.serving`."""
_KEYS: Final = (
    (None, "nova_client_priv_key"),
    ("neutron", "keyfile"),
    ("store", "lookup_token_file"),
    ("store", "token_file"),
)
"""Options that name a secret file."""
_OF_KEYSTONE: Final = ("password", "application_credential_secret", "client_secret", "token")


def process(
    conf: cfg.ConfigOpts,
    wanted: Settings,
    facts: ProcessFacts | None,
    *,
    ovs: str,
    running: bool,
) -> Iterator[Finding]:
    """Check the daemon's versions, permissions, open files and workers.

    :param facts: the daemon's process; None when there is none or it is not visible.
    :param ovs: the version that ovs-vswitchd reports; empty: it does not answer.
    :param running: whether the daemon answers.
    """
    said = gather.daemon_version(conf) if running else ""
    yield from checks_process.versions(
        VersionFacts(metadata.version("dfmeta"), said, ovs, platform.python_version())
    )
    count = conf.df_metadata.proxy_workers
    sockets = read_sockets(checks_process.wanted_sockets(wanted))
    yield from checks_process.permissions(facts, sockets, workers=count)
    connections = conf[limit_options.GROUP.name].connections
    # Each worker has a limit of its own, which is set from the daemon's hard limit.
    yield checks_process.open_files(facts, 2 * connections + OWN_FILES)
    if count:
        yield checks_process.workers(facts, count)
        if facts is not None and not facts.uid:
            yield checks_process.account(
                read_account(facts.workers, facts.pid),
                which="workers",
                option="[df_metadata] proxy_worker_user",
            )


def files(conf: cfg.ConfigOpts, wanted: Settings, owners: Owners) -> Iterator[Finding]:
    """Check the permissions of files with secrets, and the free space of state_path."""
    yield checks_system.secret_files(_secret_files(conf, owners))
    folder = Path(wanted.state_path)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with contextlib.suppress(OSError):
        there = os.statvfs(folder)
        room = DiskFacts(
            free=there.f_bavail * there.f_frsize,
            total=there.f_blocks * there.f_frsize,
            inodes=there.f_favail if there.f_files else None,
        )
        yield checks_store.disk(room, wanted.state_path)


def system(wanted: Settings, root: Path) -> Iterator[Finding]:
    """Check systemd's networkd, and whether the host itself needs metadata.

    :param root: root directory of the host's files.
    """
    yield checks_system.networkd(read_networkd(root), wanted)
    yield checks_system.cloud(own_route(wanted.ip, but=wanted.tap), wanted)


def clock(conf: cfg.ConfigOpts, skews: list[tuple[str, float]]) -> Iterator[Finding]:
    """Check the clock against the kernel's state and the clocks of other servers."""
    yield from checks_system.clock(ClockFacts(read_clock(), skews), _needs(conf))


def _needs(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the certificates and tokens that are refused while the clock is wrong."""
    group, store = conf.df_metadata, conf.store
    nova = group.backend == "nova" and conf.nova_metadata_protocol == "https"
    urls = (store.lookup_base_url, store.lookup_issuer, store.oidc_issuer)
    tls = group.backend == "store" and any((url or "").startswith("https") for url in urls)
    issuer = group.backend == "store" and (store.oidc_issuer or store.lookup_issuer)
    found = [
        ("Nova's certificate", nova),
        ("Keystone's tokens", "neutron" in group.identity_sources),
        ("the certificates of [store]'s servers", tls),
        ("the issuer's tokens", issuer),
    ]
    return [what for what, needed in found if needed]


def _secret_files(conf: cfg.ConfigOpts, owners: Owners) -> list[SecretFile]:
    found: dict[str, list[str]] = {}
    for group, options in dfmeta.conf.own_opts():
        for option in options:
            if option.secret:
                _note_secret(found, conf, option.dest, group)
    for name in _OF_KEYSTONE:
        with contextlib.suppress(cfg.NoSuchOptError):
            _note_secret(found, conf, name, "neutron")
    for group, name in _KEYS:
        path = (conf[group] if group else conf)[name]
        if path:
            found.setdefault(path, []).append(name)
    files = []
    for path, names in found.items():
        with contextlib.suppress(OSError):
            found_there = os.stat(path)
            mode, uid = stat.S_IMODE(found_there.st_mode), found_there.st_uid
            strange = uid == owners.worker
            files.append(SecretFile(path, ", ".join(names), mode, uid=uid, strange=strange))
    return files


def _note_secret(
    found: dict[str, list[str]], conf: cfg.ConfigOpts, name: str, group: str | None
) -> None:
    place = conf.get_location(name, group)
    value = str((conf[group] if group else conf)[name] or "")
    # The path of a database file is not secret.
    if name == "connection" and not urlsplit(value).password:
        return
    if value and place is not None and place.location is cfg.Locations.user:
        found.setdefault(place.detail, []).append(name)
