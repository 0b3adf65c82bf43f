"""The options of the store, and of the clients and servers that it works with: ``[store]``."""

import re
from ipaddress import ip_network
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg

from dfmeta.conf.kinds import HTTP_URL, Several, Text, absolute_path, host_port, http_url, reloaded
from dfmeta.errors import ConfigError

GROUP: Final = cfg.OptGroup(
    name="store",
    title="The embedded store",
    help="Where instances' metadata is stored when backend = store, and how guests request it.",
)
_HTTP_TOKENS: Final = {
    "off": "Tokens are not used: /latest/api/token is 404, and a token in a request is ignored.",
    "optional": "Guests may request a token. A request with a wrong or expired token is refused "
    "(401); a request without a token is answered.",
    "required": "A request without a valid token is refused (401). Unmodified cloud-init sends no "
    "token unless it detects AWS.",
}
_EC2_TREES: Final = {
    "cloud-init": "Nova's form, which an unmodified cloud-init reads.",
    "equinix": "Equinix Metal's form: other items, no slash after the names of directories, and "
    "public keys as text without an index. cloud-init then reads a newer version of the tree, but "
    "requests the instance-id from this one first, where it is empty unless the document has an "
    "id.",
}
_TEMPLATE: Final = (
    "Template for the member {name} of /metadata, for instances whose document has no such "
    "member. The form is that of Go's text/template, with fields of the document alone: "
    "https://{{{{.facility}}}}.example.org/{path}. A template that fails, for example because the "
    "document lacks a field, adds nothing. Empty: the member is not added."
)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JWKS_URL: Final = re.compile(r"https?://[^\s/?#@]+([/?][^\s#]*)?", re.IGNORECASE)
_WORD: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope (RFC 6749, 3.3)."""
_NETWORK: Final = Text(
    # A zone is valid on one host alone.
    "an address or a network, without a zone",
    lambda text: "%" not in text and ip_network(text, strict=False),
    example="192.0.2.7 or 2001:db8::/64",
)


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    sound = bool(parts.hostname) and parts.port != 0 and text.isascii()
    return sound and bool(HTTP_URL.fullmatch(text))


_URL: Final = http_url(_is_url, example="https://store.example.org:9697", optional=True)
_PRINTABLE: Final = Text(
    "text of printable ASCII alone",
    lambda text: text.isascii() and text.isprintable(),
    example="the issuer's own",
    optional=True,
)
"""Client id and secret (RFC 6749, appendix A)."""

OPTS: Final = reloaded(
    cfg.StrOpt(
        "connection",
        default="sqlite:///${df_metadata.state_path}/store.db",
        secret=True,
        help=(
            "The store's database, as an SQLAlchemy URL: sqlite:///PATH (four slashes with an "
            "absolute PATH), or postgresql://USER:PASSWORD@HOST/DATABASE, which several "
            "dfmeta-store may share (pip install 'dfmeta[postgresql]'). The daemon and the dfmeta "
            "store command must use the same database, and with SQLite both must be able to write "
            "the file and its directory. A missing SQLite file is created with mode 0600, and its "
            "directory with 0700; wider permissions of the file are reduced to 0600. The schema is "
            "upgraded when the database is opened; a database with the schema of a newer dfmeta is "
            "refused."
        ),
    ),
    cfg.StrOpt(
        "http_tokens",
        default="optional",
        choices=list(_HTTP_TOKENS.items()),
        help="EC2's tokens against forged requests (IMDSv2), with every backend. The setting of a "
        "record (dfmeta store put --http-tokens) and http_tokens_of override it.",
    ),
    cfg.StrOpt(
        "ec2_tree",
        default="cloud-init",
        choices=list(_EC2_TREES.items()),
        help="Form of the EC2 tree below /2009-04-04. /latest and all other versions always have "
        "the form that cloud-init reads.",
    ),
    cfg.StrOpt("api_url", default="", help=_TEMPLATE.format(name="api_url", path="api")),
    cfg.StrOpt(
        "phone_home_url",
        default="",
        help=_TEMPLATE.format(name="phone_home_url", path="phone-home"),
    ),
    cfg.StrOpt(
        "user_state_url",
        default="",
        help=_TEMPLATE.format(name="user_state_url", path="events"),
    ),
    cfg.DictOpt(
        "http_tokens_of",
        default={},
        help="http_tokens of single instances: a comma list of UUID:off, UUID:optional and "
        "UUID:required. It overrides the setting of a record, and serves backends without such a "
        "setting, such as Nova.",
    ),
    cfg.IntOpt(
        "max_body",
        default=1048576,
        min=1024,
        # A document does not fit into less; more would keep the daemon busy for seconds.
        max=64 << 20,
        help="Largest size of the body of a request to the admin API in bytes: a document or "
        "user-data with its envelope. A larger body is answered with 413 and not kept in memory.",
    ),
    cfg.Opt(
        "token_file",
        type=absolute_path(example="/etc/dfmeta/tokens", optional=True),
        help="File with the hashes and scopes of the static tokens that the store's admin API "
        "accepts. dfmeta token create, list and revoke manage it. Only its owner may read or write "
        "it (mode 0600). Changes take effect without a restart. Unset: no static tokens.",
    ),
    cfg.Opt(
        "oidc_issuer",
        type=http_url(
            HTTP_URL.fullmatch,
            example="https://login.example.org/realms/cloud",
            optional=True,
        ),
        help="OpenID Connect issuer of tokens (JWT, signed with an asymmetric algorithm) that the "
        "store's admin API accepts, such as https://login.example.org/realms/cloud. It must equal "
        "the claim iss exactly. With http instead of https, an attacker on the network path can "
        "forge tokens. Unset: no tokens of an issuer. Without oidc_issuer and token_file the API "
        "requires no token, and is allowed on loopback only.",
    ),
    cfg.StrOpt(
        "oidc_audience",
        help="Audience that a token's claim aud must contain. Required with oidc_issuer, so that "
        "tokens for other services are not accepted here.",
    ),
    cfg.Opt(
        "oidc_jwks_url",
        type=Text(
            "an http or https URL without a user and a fragment",
            _JWKS_URL.fullmatch,
            example="https://login.example.org/realms/cloud/keys",
            optional=True,
        ),
        help="URL of the issuer's keys (a JWK set). Unset: the URL is read from "
        "/.well-known/openid-configuration under oidc_issuer. The server's certificate is checked "
        "against the system's authorities.",
    ),
    cfg.Opt(
        "oidc_roles_claim",
        type=Text(
            "the name of a claim",
            lambda text: text.split() == [text] and text.strip("."),
            example="roles or realm_access.roles",
            optional=True,
        ),
        help="Claim of a token that contains its scopes, as a list or as words, in addition to "
        "scope and scp, which are always read. Dots lead to a claim inside another: "
        "realm_access.roles. Unset: only scope and scp are read.",
    ),
    cfg.BoolOpt(
        "defaults",
        default=False,
        help="Answer an instance that has no record of its own from the defaults that dfmeta "
        "store put writes with --default, --default-host and --default-project. Defaults of its "
        "project override those of the host (named as hostname prints it), and these override "
        "those for all instances. The host name is made from the libvirt domain's name. When this "
        "is false, or the store has no defaults, such an instance gets 404.",
    ),
    cfg.Opt(
        "lookup_base_url",
        type=_URL,
        help="Upstream store, which is queried for records that this store does not have, such as "
        "https://store.example.org:9697: a dfmeta-store, or another server that answers GET "
        "/device-metadata and /device-userdata under this URL, by instance id and by ip_address. "
        "Its certificate is checked against the system's authorities. Unset: no lookups.",
    ),
    cfg.FloatOpt(
        "lookup_timeout",
        default=2,
        min=0.1,
        max=60,
        help="Seconds that each try of a lookup may take, including the connection and the token.",
    ),
    cfg.IntOpt(
        "lookup_retries",
        default=2,
        min=0,
        max=10,
        help="Number of retries after a first try that failed. Together with lookup_timeout it "
        "limits how long a guest waits, which should be less than hold_timeout. The lookup of an "
        "expired record is not retried.",
    ),
    cfg.FloatOpt(
        "lookup_negative_ttl",
        default=10,
        min=0,
        max=86400,
        help="Seconds to cache 'not found' answers from the upstream store. 0: they are not "
        "cached, and each request leads to a lookup.",
    ),
    cfg.FloatOpt(
        "lookup_expiry",
        default=0,
        min=0,
        max=31536000,
        help="Seconds after which a fetched record expires and is looked up again. While the "
        "upstream store is unavailable, expired records are still served. Pushed records do not "
        "expire. 0: fetched records do not expire either.",
    ),
    cfg.Opt(
        "lookup_token_file",
        type=absolute_path(example="/etc/dfmeta/lookup.token", optional=True),
        help="Absolute path of the file with the token for the upstream store, as dfmeta token "
        "create prints it. Other users must not be able to read the file. It is read for each "
        "lookup. Unset, without lookup_issuer: requests carry no token.",
    ),
    cfg.Opt(
        "lookup_issuer",
        type=_URL,
        help="OpenID Connect issuer of tokens for the upstream store (OAuth 2.0 client "
        "credentials), such as https://login.example.org/realms/cloud. Its token endpoint is read "
        "from /.well-known/openid-configuration under this URL.",
    ),
    cfg.Opt(
        "lookup_client_id",
        type=_PRINTABLE,
        help="Client id of this store at lookup_issuer. Required with lookup_issuer.",
    ),
    cfg.Opt(
        "lookup_client_secret",
        type=_PRINTABLE,
        secret=True,
        help="Client secret of lookup_client_id. Required with lookup_issuer.",
    ),
    cfg.Opt(
        "lookup_audience",
        type=_PRINTABLE,
        help="Audience of the tokens that are requested. Unset: lookup_issuer's default.",
    ),
    cfg.Opt(
        "lookup_scopes",
        type=Several(Text("a scope", _WORD.fullmatch, example="read"), least=0),
        default=[],
        help="Scopes of the tokens that are requested, with commas between them. A dfmeta-store "
        "requires read, or metadata:read:metadata and metadata:read:userdata.",
    ),
    cfg.Opt(
        "guest_listen",
        type=host_port(example="192.0.2.1:80 or [::]:80", optional=True),
        default="",
        help="HOST:PORT at which dfmeta-store answers guests, such as 192.0.2.1:80, or [::]:80 for "
        "all IPv4 and IPv6 addresses. Empty: it does not answer guests and only serves its admin "
        "API. A guest is identified by its source address, so the network in between must prevent "
        "forged addresses. dfmeta-agent does not read this option.",
    ),
    cfg.Opt(
        "trusted_proxies",
        type=Several(_NETWORK, least=0),
        default=[],
        help="Proxies from which dfmeta-store accepts the guest's address in X-Forwarded-For: "
        "their addresses or networks, with commas between them. The header is read from the right, "
        "up to the first address that is not in this list. A guest that can send from an address "
        "in the list can claim any address. X-Forwarded-For of other peers is ignored; "
        "dfmeta-agent never takes an address from it.",
    ),
    but=("connection", "guest_listen"),
)
_NEEDS: Final = (
    ("oidc_issuer", ("oidc_audience",)),
    ("oidc_audience", ("oidc_issuer",)),
    ("oidc_jwks_url", ("oidc_issuer",)),
    ("oidc_roles_claim", ("oidc_issuer",)),
    ("lookup_token_file", ("lookup_base_url",)),
    ("lookup_issuer", ("lookup_base_url", "lookup_client_id", "lookup_client_secret")),
    ("lookup_client_id", ("lookup_issuer",)),
    ("lookup_client_secret", ("lookup_issuer",)),
    ("lookup_audience", ("lookup_issuer",)),
    ("lookup_scopes", ("lookup_issuer",)),
)
"""Option → others without which it has no effect, or is not safe."""
_NAMES: Final = tuple(option.name for option in OPTS)
AUTH: Final = tuple(name for name in _NAMES if name.startswith(("token_file", "oidc_")))
"""Options of authentication at the store's admin API."""
LOOKUP: Final = tuple(name for name in _NAMES if name.startswith("lookup_"))
"""Options of lookups at an upstream store."""
TEMPLATES: Final = ("api_url", "phone_home_url", "user_state_url")
"""Options that hold a template for the member of the same name."""


def http_tokens_of(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return http_tokens_of: instance id in lower case → mode.

    :raises ConfigError: for an entry that is not an instance and a mode, or a second entry for an
        instance.
    """
    modes: dict[str, str] = {}
    for name, mode in conf.store.http_tokens_of.items():
        instance = name.lower()
        if not _UUID.fullmatch(instance):
            raise _wrong_entry(name, mode, "it does not begin with a UUID with dashes")
        if mode not in _HTTP_TOKENS:
            raise _wrong_entry(name, mode, "there is no such mode")
        if instance in modes:
            raise _wrong_entry(name, mode, "the instance has two entries")
        modes[instance] = mode
    return modes


def check(conf: cfg.ConfigOpts) -> None:
    """Check the rules between options.

    :raises ConfigError: naming the option.
    """
    http_tokens_of(conf)
    group = conf.store
    for option, needed in _NEEDS:
        for other in needed:
            if group[option] and not group[other]:
                cause = f"{option} is set and needs it"
                raise _wrong(other, cause, remedy=f"Set {other}, or remove {option}")
    if group.lookup_token_file and group.lookup_issuer:
        raise _wrong(
            "lookup_token_file",
            "lookup_issuer is set too, and gives tokens already",
            value=group.lookup_token_file,
            remedy="Set only one of the two options",
        )


def _wrong_entry(name: str, mode: str, cause: str) -> ConfigError:
    remedy = f"Give each instance once, as UUID:MODE; modes are {', '.join(_HTTP_TOKENS)}"
    return _wrong("http_tokens_of", cause, value=f"{name}:{mode}", remedy=remedy)


def _wrong(option: str, cause: str, *, remedy: str, value: str = "") -> ConfigError:
    """Return the error for an option of the group."""
    return ConfigError(option=f"[{GROUP.name}] {option}", value=value, cause=cause, remedy=remedy)
