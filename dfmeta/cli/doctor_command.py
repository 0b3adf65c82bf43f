"""``dfmeta doctor``: checks of everything that a working host needs, each with its remedy."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli.client import agent_of, make_host_settings, take_over
from dfmeta.cli.common import TABLE, cell_text, command, listing_options, print_rows, shown
from dfmeta.conf import attachments as attachment_options
from dfmeta.conf import kinds, unknown_options
from dfmeta.conf import limits as limit_options
from dfmeta.conf.haproxy import HAPROXY
from dfmeta.doctor import checks_trunks, table
from dfmeta.doctor.checks_daemon import OptionFacts, ProgramFacts
from dfmeta.doctor.finding import CheckStatus, Finding, healthy, summary
from dfmeta.doctor.probes import Inspection, InspectionOptions
from dfmeta.doctor.services import ServiceOptions
from dfmeta.errors import ConfigError
from dfmeta.neutron.client import NeutronApi
from dfmeta.wiring import process, services

_KEYS: Final = (
    (None, "nova_client_priv_key"),
    ("neutron", "keyfile"),
    ("ovn", "ovn_sb_private_key"),
    ("store", "lookup_token_file"),
    ("store", "token_file"),
)
"""Options that name a secret file."""
SECRETS: Final = (
    ("DEFAULT", "metadata_proxy_shared_secret"),
    ("neutron", "password"),
    ("store", "connection"),
    ("store", "lookup_client_secret"),
)
"""Secrets that a check sends to another server: group and name."""
_OF_KEYSTONE: Final = ("password", "application_credential_secret", "client_secret", "token")
COLUMNS: Final = {"status": "STATUS", "check": "CHECK", "text": "FOUND", "remedy": "REMEDY"}
STYLES: Final = {
    "status": {"ok": "green", "warning": "yellow", "wrong": "bold red", "unknown": "yellow"}
}


@command(
    "doctor",
    "dfmeta doctor",
    "dfmeta doctor --failing",
    "dfmeta doctor --format json",
    failed="anything is wrong, or dfmeta-agent does not run",
)
@listing_options
@click.option("--failing", is_flag=True, help="Show only lines that are not ok.")
@click.option(
    "--root",
    default="/",
    metavar="DIRECTORY",
    help="Root directory of the host's files, for doctor in a container that has them mounted "
    "elsewhere: the files of systemd-networkd.",
)
def doctor(conf: cfg.ConfigOpts, *, fmt: str, wide: bool, failing: bool, root: str) -> None:
    """Check everything that a working host needs, and show the remedy for each fault.

    Each check has a line: its status (ok, warning, wrong, unknown), its name, the finding and, for
    a warning and a fault, the remedy. The last line has the number of each status; JSON has no such
    line. The command changes nothing. Run it as root, on the host.
    """
    # Errors of libraries are in the findings; their log lines would not help the operator.
    logging.disable()
    # On terminals only: programs that read doctor's output take text on stderr for an error.
    with shown("checking the host") if sys.stderr.isatty() else contextlib.nullcontext():
        findings = list(examine(conf, Path(root)))
    rows = [
        {key: asdict(finding)[key] for key in COLUMNS}
        for finding in findings
        if not (failing and finding.status is CheckStatus.OK)
    ]
    if fmt == TABLE and not wide and sys.stdout.isatty():
        from dfmeta.cli import terminal

        texts = [{key: cell_text(text) for key, text in row.items() if text} for row in rows]
        terminal.draw_findings(texts, ("status", "check"), ("text", "remedy"), styles=STYLES)
    else:
        print_rows(rows, COLUMNS, fmt, styles=STYLES, wide=wide)
    if fmt == TABLE:
        click.echo(summary(findings))
    sys.exit(0 if healthy(findings) else 1)


def examine(conf: cfg.ConfigOpts, root: Path) -> Iterator[Finding]:
    """Run every check.

    :param root: root directory of the host's files.
    """
    # The checks use the values in force in the daemon, not those that its files have now.
    in_force = take_over(conf)
    strange = [(str(error), error.remedy) for error in unknown_options(conf)]
    compared = OptionFacts(**vars(in_force.differences), cause=in_force.cause, strange=strange)
    options = make_inspection_options(conf, compared)
    return table.examine(Inspection(make_host_settings(conf), options, agent_of(conf), root=root))


def make_inspection_options(conf: cfg.ConfigOpts, compared: OptionFacts) -> InspectionOptions:
    """Return the options that the checks of doctor need.

    :param compared: the options that differ in the running daemon.
    """
    group = conf.df_metadata
    haproxy = (lambda: _program(conf)) if group.engine == HAPROXY else None
    return InspectionOptions(
        lock=process.lock_name(group.ovsdb_connection, group.integration_bridge),
        haproxy=haproxy,
        haproxy_user=kinds.account_of(conf.haproxy.user, kinds.HAPROXY_ACCOUNT),
        workers=group.proxy_workers,
        worker_user=kinds.account_of(group.proxy_worker_user, kinds.WORKER_ACCOUNT),
        connections=conf[limit_options.GROUP.name].connections,
        attachments=_attachments(conf) if conf.attachments.enabled else None,
        services=_services(conf, newer=bool(compared.newer)),
        secrets=_secret_files(conf),
        clock_needs=_clock_needs(conf),
        compared=compared,
    )


def _program(conf: cfg.ConfigOpts) -> ProgramFacts:
    try:
        program = services.find_haproxy(conf)
    except ConfigError as error:
        fields = error.fields
        cause = f"[haproxy] binary = {fields['value']} cannot be used: {fields['cause']}"
        return ProgramFacts(cause=cause, remedy=f"{fields['remedy']}")
    return ProgramFacts(binary=program.binary, version=program.version)


def _attachments(conf: cfg.ConfigOpts) -> checks_trunks.AttachmentOptions:
    group = conf.attachments
    networks = attachment_options.networks(conf)
    return checks_trunks.AttachmentOptions(
        host=services.neutron_host(conf),
        most=min(group.quota, len(attachment_options.vids(group))),
        networks={name: network.mtu for name, network in networks.items()},
        local=group.driver == "local",
    )


def _services(conf: cfg.ConfigOpts, *, newer: bool) -> ServiceOptions:
    group = conf.df_metadata
    sources, of_store = group.identity_sources, group.backend == "store"
    paths = [Path(path) for path in group.libvirt_xml_path]
    names = ("identity_sources", "libvirt_xml_path")
    asks = of_store and conf.store.lookup_base_url
    return ServiceOptions(
        nova=services.make_nova_settings(conf) if group.backend == "nova" else None,
        libvirt=paths if "libvirt" in sources else None,
        libvirt_wanted=any(_is_explicit(conf, name, "df_metadata") for name in names),
        neutron=_neutron(conf) if "neutron" in sources else None,
        neutron_host=services.neutron_host(conf),
        ovn=services.southbound(conf) if "ovn" in sources else None,
        store=conf.store.connection if of_store or "store" in sources else "",
        lookup=(lambda: services.make_upstream(conf)) if asks else None,
        lookup_url=conf.store.lookup_base_url or "",
        tokens=(conf.store.token_file or "") if of_store else "",
        secrets=sorted(SECRETS) if newer else (),
    )


def _neutron(conf: cfg.ConfigOpts) -> NeutronApi | ConfigError:
    try:
        return services.make_neutron_client(conf)
    except ConfigError as error:
        return error


def _is_explicit(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    """Return whether an operator has set an option, so that it does not have its default."""
    place = conf.get_location(name, group)
    return place is not None and bool(place.location.is_user_controlled)


def _clock_needs(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the certificates and tokens that are refused while the clock is wrong."""
    group, store = conf.df_metadata, conf.store
    nova = group.backend == "nova" and conf.nova_metadata_protocol == "https"
    urls = (store.lookup_base_url, store.lookup_issuer, store.oidc_issuer)
    tls = group.backend == "store" and any((url or "").startswith("https") for url in urls)
    issuer = group.backend == "store" and (store.oidc_issuer or store.lookup_issuer)
    needs = (
        ("Nova's certificate", nova),
        ("Keystone's tokens", "neutron" in group.identity_sources),
        ("the certificates of [store]'s servers", tls),
        ("the issuer's tokens", issuer),
    )
    return [name for name, needed in needs if needed]


def _secret_files(conf: cfg.ConfigOpts) -> dict[str, list[str]]:
    """Return path of a file with secrets → names of the options."""
    files: dict[str, list[str]] = {}
    for group, name in _secrets():
        with contextlib.suppress(cfg.NoSuchOptError):
            place = conf.get_location(name, group)
            value = str((conf[group] if group else conf)[name] or "")
            # The path of a database file is not secret.
            open_value = name == "connection" and not urlsplit(value).password
            if value and not open_value and place and place.location is cfg.Locations.user:
                for path in dfmeta.conf.files_with(conf, name, group):
                    files.setdefault(path, []).append(name)
    for group, name in _KEYS:
        path = (conf[group] if group else conf)[name]
        if path:
            files.setdefault(path, []).append(name)
    return files


def _secrets() -> Iterator[tuple[str | None, str]]:
    """Yield group and name of each option that is a secret."""
    for group, options in dfmeta.conf.own_opts():
        yield from ((group, option.dest) for option in options if option.secret)
    yield from (("neutron", name) for name in _OF_KEYSTONE)
