"""Options of Neutron's API, as an identity source and for attachments, group ``[neutron]``, and of
OVN's southbound database as an identity source, group ``[ovn]``.

The names of ``[ovn]`` are those of Neutron's agents. The others are those that keystoneauth1 gives
to every OpenStack service's client, so that a ``[neutron]`` section of nova.conf can be copied.
keystoneauth1's plugins define the options of authentication, which are registered when Neutron is
used.
"""

import contextlib
import re
from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several, Text, check_file, has_port
from dfmeta.errors import ConfigError
from dfmeta.http.client import client_context

GROUP: Final = cfg.OptGroup(
    name="neutron",
    title="Neutron as an identity source, and for attachments",
    help="Used when identity_sources contains neutron, or [attachments] driver is neutron. Needs "
    "pip install 'dfmeta[neutron]', and an account that may list the ports of all projects (by "
    "Neutron's default policy: admin, or the service role). For attachments it has to be admin.",
)
_INTERFACES: Final = ("internal", "public", "admin")
_WORD: Final = re.compile(r"\S{1,255}")
_URL: Final = re.compile(r"https?://[^\s/?#]+[^\s?#]*")

OPTS: Final = [
    cfg.Opt(
        "host",
        type=Text("a host name of at most 255 characters", _WORD.fullmatch, example="compute-1"),
        help="Name of this host in binding:host_id of Neutron's ports. Must match [DEFAULT] host "
        "of nova.conf and of Neutron's agent. It also names the host among those that share "
        "[attachments] connection. Unset: the system's host name.",
    ),
    cfg.FloatOpt(
        "timeout",
        default=2,
        min=0.1,
        max=60,
        help="Seconds to wait for an answer of Keystone and Neutron together. Ports that need the "
        "answer wait up to this time; keep it well below hold_timeout.",
    ),
    cfg.StrOpt(
        "region_name",
        help="Region of Neutron in Keystone's catalogue. Unset: the first region there.",
    ),
    cfg.Opt(
        "valid_interfaces",
        type=Several(types.String(choices=_INTERFACES)),
        default=["internal", "public"],
        help="Kinds of endpoint to take from Keystone's catalogue, in order of preference: some of "
        "internal, public and admin, with commas between them.",
    ),
    cfg.Opt(
        "endpoint_override",
        type=Text(
            "an http or https URL without a query",
            _URL.fullmatch,
            example="http://192.0.2.10:9696",
        ),
        help="URL of Neutron, such as http://192.0.2.10:9696. Unset: the URL in Keystone's "
        "catalogue.",
    ),
    cfg.StrOpt(
        "cafile",
        help="PEM file with the certificates of the authorities for Keystone's and Neutron's "
        "certificates. Unset: the system's authorities.",
    ),
    cfg.BoolOpt(
        "insecure",
        default=False,
        help="Do not check the certificates of Keystone and Neutron. An attacker on the network "
        "path can then forge the instance and project of a port.",
    ),
    cfg.StrOpt(
        "certfile",
        help="PEM file with the client certificate for Keystone and Neutron. Unset: none is sent.",
    ),
    cfg.StrOpt("keyfile", help="PEM file with the private key of certfile."),
]
OVN: Final = cfg.OptGroup(
    name="ovn",
    title="OVN's southbound database as an identity source",
    help="Used when identity_sources contains ovn. dfmeta only reads this host's ports there.",
)
_METHOD: Final = re.compile(r"unix:/\S+|(tcp|ssl):\S+:\d+")
OVN_FILES: Final = {
    "ovn_sb_private_key": "private key",
    "ovn_sb_certificate": "certificate of ovn_sb_private_key",
    "ovn_sb_ca_cert": "certificates of the authorities for the database's certificate",
}
OVN_OPTS: Final = [
    cfg.Opt(
        "ovn_sb_connection",
        type=Several(
            Text(
                "unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT with a port from 1 to 65535",
                lambda text: _METHOD.fullmatch(text) and has_port(text),
                example="tcp:192.0.2.10:6642",
            )
        ),
        help="Address of the database, or those of a cluster's members with commas between them. "
        "Unset: that of ovn-controller, external_ids:ovn-remote of Open_vSwitch.",
    ),
    *(
        cfg.StrOpt(name, default="", help=f"PEM file with the {noun}, for ssl: addresses.")
        for name, noun in OVN_FILES.items()
    ),
]


def sample_opts() -> list[cfg.Opt]:
    """Return the options of the group for oslo-config-generator.

    They include keystoneauth1's options for an account with a password, if it is installed.
    """
    try:
        from keystoneauth1 import loading
    except ImportError:
        return list(OPTS)
    common = loading.get_auth_common_conf_options()
    return [*OPTS, *common, *loading.get_auth_plugin_conf_options("password")]


def session(conf: cfg.ConfigOpts) -> Any:
    """Make the ``keystoneauth1.session.Session`` that the options describe; send nothing.

    :raises ConfigError: when keystoneauth1 is not installed, or one of its options is missing or
        wrong.
    """
    try:
        from keystoneauth1 import exceptions, loading
    except ImportError as error:
        raise ConfigError(
            option="[neutron] auth_type",
            value="",
            cause="keystoneauth1 is not installed",
            remedy="pip install 'dfmeta[neutron]', or set neutron neither in [df_metadata] "
            "identity_sources nor as [attachments] driver",
        ) from error
    loading.register_auth_conf_options(conf, GROUP.name)
    group = conf.neutron
    if not group.auth_type and not group.auth_section:
        raise ConfigError(
            option="[neutron] auth_type",
            value="",
            cause="Neutron cannot be queried without an account",
            remedy="Set it to password, and set auth_url, username, password, project_name, "
            "user_domain_name and project_domain_name",
        )
    try:
        auth = loading.load_auth_from_conf_options(conf, GROUP.name)
        made = loading.session.Session().load_from_options(
            auth=auth,
            insecure=group.insecure,
            cacert=group.cafile,
            cert=group.certfile,
            key=group.keyfile,
            timeout=group.timeout,
        )
    except (exceptions.ClientException, cfg.Error, ValueError) as error:
        raise ConfigError(
            option="[neutron] auth_type",
            value=group.auth_type,
            cause=" ".join(str(error).split()),
            remedy="Set it to password, and set the options of the account that the sample "
            "configuration lists",
        ) from error
    _adapt(made, system=not group.cafile and not group.insecure)
    return made


def _adapt(made: Any, *, system: bool) -> None:
    """Make a session open a connection for each request.

    Bytes that a faulty balancer sends behind an answer would be the answer to the next request,
    such as the one for another subnet (RFC 9112, 11.2).

    :param system: make it trust the system's authorities; requests would use certifi's by default.
    """
    from keystoneauth1.session import TCPKeepAliveAdapter

    context = client_context() if system else None

    class Adapter(TCPKeepAliveAdapter):  # type: ignore[misc]  # keystoneauth1 has no types
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **options)

        def cert_verify(self, conn: Any, *args: Any) -> None:
            super().cert_verify(conn, *args)
            if context is not None:
                # Authorities of these attributes would be trusted in addition to the context's.
                conn.ca_certs = conn.ca_cert_dir = None

    class OneRequest(TCPKeepAliveAdapter):  # type: ignore[misc]  # keystoneauth1 has no types
        def send(self, *args: Any, **options: Any) -> Any:
            with contextlib.closing(Adapter()) as adapter:
                response = adapter.send(*args, **options)
                # Reads the body while the connection is open.
                _ = response.content
            return response

    for scheme in ("http://", "https://"):
        made.session.mount(scheme, OneRequest())


def check(conf: cfg.ConfigOpts) -> None:
    """Check that the files of certificates can be read, and that keyfile has its certfile.

    :raises ConfigError: naming the option.
    """
    if bool(conf.neutron.keyfile) and not conf.neutron.certfile:
        raise ConfigError(
            option="[neutron] certfile",
            value="",
            cause="keyfile is set and has no effect without it",
            remedy="Set both, or neither",
        )
    for group, options in (("neutron", ("cafile", "certfile", "keyfile")), ("ovn", OVN_FILES)):
        for option in options:
            check_file(f"[{group}] {option}", conf[group][option])
