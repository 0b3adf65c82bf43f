"""The options of the store."""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

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

OPTS: Final = [
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
        mutable=True,
        help="EC2's tokens against forged requests (IMDSv2), with every backend. The setting of a "
        "record (dfmeta store put --http-tokens) and http_tokens_of override it.",
    ),
    cfg.StrOpt(
        "ec2_tree",
        default="cloud-init",
        choices=list(_EC2_TREES.items()),
        mutable=True,
        help="Form of the EC2 tree below /2009-04-04. /latest and all other versions always have "
        "the form that cloud-init reads.",
    ),
    cfg.StrOpt(
        "api_url", default="", mutable=True, help=_TEMPLATE.format(name="api_url", path="api")
    ),
    cfg.StrOpt(
        "phone_home_url",
        default="",
        mutable=True,
        help=_TEMPLATE.format(name="phone_home_url", path="phone-home"),
    ),
    cfg.StrOpt(
        "user_state_url",
        default="",
        mutable=True,
        help=_TEMPLATE.format(name="user_state_url", path="events"),
    ),
    cfg.DictOpt(
        "http_tokens_of",
        default={},
        mutable=True,
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
        mutable=True,
        help="Largest size of the body of a request to the admin API in bytes: a document or "
        "user-data with its envelope. A larger body is answered with 413 and not kept in memory.",
    ),
]


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
    """Check http_tokens_of.

    :raises ConfigError: naming the option.
    """
    http_tokens_of(conf)


def _wrong_entry(name: str, mode: str, cause: str) -> ConfigError:
    remedy = f"Give each instance once, as UUID:MODE; modes are {', '.join(_HTTP_TOKENS)}"
    return wrong("http_tokens_of", cause, value=f"{name}:{mode}", remedy=remedy)


def wrong(option: str, cause: str, *, remedy: str, value: str = "") -> ConfigError:
    """Return the error for an option of the group."""
    return ConfigError(option=f"[{GROUP.name}] {option}", value=value, cause=cause, remedy=remedy)
