"""How Neutron's API is reached as an identity source, group ``[neutron]``.

The names are those that keystoneauth1 gives to every OpenStack service's client, so that a
``[neutron]`` section of nova.conf can be copied. How one authenticates is keystoneauth1's own: its
plugins bring their options, which are registered when Neutron is among the sources.
"""

from __future__ import annotations

import re
from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.conf.kinds import Several, Text
from dfmeta.conf.nova import check_file
from dfmeta.exceptions import ConfigError
from dfmeta.trust import client_context

GROUP: Final = cfg.OptGroup(
    name="neutron",
    title="Neutron as an identity source",
    help="Used when identity_sources has neutron. Needs pip install 'dfmeta[neutron]', and an "
    "account that may see other projects' ports (by Neutron's default policy: admin, or the "
    "service role).",
)
_INTERFACES: Final = ("internal", "public", "admin")
_WORD: Final = re.compile(r"\S{1,255}")
_URL: Final = re.compile(r"https?://[^\s/?#]+[^\s?#]*")

OPTS: Final = [
    cfg.Opt(
        "host",
        type=Text("a host name of at most 255 characters", _WORD.fullmatch, example="compute-1"),
        help="This host, as Neutron has it in binding:host_id of its ports. Must match [DEFAULT] "
        "host of nova.conf and of Neutron's agent. Unset: the system's host name.",
    ),
    cfg.FloatOpt(
        "timeout",
        default=2,
        min=0.1,
        max=60,
        help="Seconds that Keystone and Neutron together may take for an answer. Ports that need "
        "it wait for so long; keep it well below hold_timeout.",
    ),
    cfg.StrOpt(
        "region_name",
        help="Region of Neutron in Keystone's catalogue. Unset: the first one there.",
    ),
    cfg.Opt(
        "valid_interfaces",
        type=Several(types.String(choices=_INTERFACES), noun="kind"),
        default=["internal", "public"],
        help="Kinds of endpoint to take from Keystone's catalogue, the preferred one first: of "
        "internal, public and admin.",
    ),
    cfg.Opt(
        "endpoint_override",
        type=Text(
            "an http or https URL without a query",
            _URL.fullmatch,
            example="http://192.0.2.10:9696",
        ),
        help="Neutron's address, such as http://192.0.2.10:9696, instead of the catalogue's.",
    ),
    cfg.StrOpt(
        "cafile",
        help="File with the certificates of the authorities that Keystone's and Neutron's "
        "certificates are checked against, PEM. Unset: the system's.",
    ),
    cfg.BoolOpt(
        "insecure",
        default=False,
        help="Do not check their certificates. Whoever is between can then say whose a port is.",
    ),
    cfg.StrOpt("certfile", help="Client certificate for both, PEM."),
    cfg.StrOpt("keyfile", help="Private key of certfile, PEM."),
]


def sample_opts() -> list[cfg.Opt]:
    """Ours, and those of the usual way to authenticate, for oslo-config-generator."""
    try:
        from keystoneauth1 import loading
    except ImportError:
        return list(OPTS)
    common = loading.get_auth_common_conf_options()
    return [*OPTS, *common, *loading.get_auth_plugin_conf_options("password")]


def session(conf: cfg.ConfigOpts) -> Any:
    """Make the ``keystoneauth1.session.Session`` that the options describe; sends nothing.

    :raises ConfigError: when keystoneauth1 is not there, or an option of its is missing or wrong.
    """
    try:
        from keystoneauth1 import exceptions, loading
    except ImportError as error:
        raise ConfigError(
            option="[df_metadata] identity_sources",
            value="neutron",
            cause="keystoneauth1 is not installed",
            remedy="pip install 'dfmeta[neutron]', or leave neutron out",
        ) from error
    loading.register_auth_conf_options(conf, GROUP.name)
    group = conf.neutron
    if not group.auth_type and not group.auth_section:
        raise ConfigError(
            option="[neutron] auth_type",
            value="",
            cause="Neutron is asked by nobody without an account",
            remedy="Give password, with auth_url, username, password, project_name, "
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
            remedy="Give password and the options that the sample configuration has for it",
        ) from error
    if not group.cafile and not group.insecure:
        _trust_the_system(made)
    return made


def _trust_the_system(made: Any) -> None:
    """Have a session trust the system's authorities: requests takes certifi's by itself."""
    from keystoneauth1.session import TCPKeepAliveAdapter

    class Adapter(TCPKeepAliveAdapter):  # type: ignore[misc]  # keystoneauth1 has no types
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, ssl_context=client_context(), **options)

        def cert_verify(self, conn: Any, *args: Any) -> None:
            super().cert_verify(conn, *args)
            # A list would be trusted in addition to the context.
            conn.ca_certs = conn.ca_cert_dir = None

    made.session.mount("https://", Adapter())


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    if bool(conf.neutron.keyfile) and not conf.neutron.certfile:
        raise ConfigError(
            option="[neutron] certfile",
            value="",
            cause="keyfile is of no use without it",
            remedy="Give both, or neither",
        )
    group = conf.neutron
    for option in ("cafile", "certfile", "keyfile"):
        check_file(f"[neutron] {option}", group[option])
