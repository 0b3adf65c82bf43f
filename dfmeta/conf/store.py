"""The options of the store."""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

from dfmeta.exceptions import ConfigError

GROUP: Final = cfg.OptGroup(
    name="store",
    title="The embedded store",
    help="Where instances' metadata is kept when backend = store, and how guests ask for it.",
)
_HTTP_TOKENS: Final = {
    "off": "There are no tokens: /latest/api/token is 404, and a token makes no difference.",
    "optional": "Guests may take a token. A request with a wrong or expired one is refused (401), "
    "one without goes on.",
    "required": "Every request needs a token, or is refused (401). Unmodified cloud-init asks "
    "without one unless it finds itself on AWS.",
}
_EC2_TREES: Final = {
    "cloud-init": "Nova's form, which an unmodified cloud-init crawls.",
    "equinix": "Equinix Metal's form: other items, no folders marked by a slash, and keys as they "
    "are. cloud-init takes a newer version of the tree then, but asks this one first for an "
    "instance-id, which is empty here unless the document has an id.",
}
_TEMPLATE: Final = (
    "The member {name} that /metadata gets where an instance's document has none. A template over "
    "the document in the form of Go's text/template, of which it has fields: "
    "https://{{{{.facility}}}}.example.org/{path}. One that fails, such as over a member that the "
    "document lacks, adds nothing. Empty: none is added."
)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

OPTS: Final = [
    cfg.StrOpt(
        "connection",
        default="sqlite:///${df_metadata.state_path}/store.db",
        secret=True,
        help=(
            "The store's database, as an SQLAlchemy URL: sqlite:///PATH, where an absolute PATH "
            "makes four slashes, or postgresql://USER:PASSWORD@HOST/DATABASE, which several "
            "dfmeta-store may share (pip install 'dfmeta[postgresql]'). The daemon and the dfmeta "
            "store command must name the same one, and both must be able to write the file and its "
            "folder. Of SQLite: a missing file is created with mode 0600, its folder with 0700; a "
            "file with wider rights is narrowed to 0600. Its schema is brought up to date when it "
            "is opened; one that a newer dfmeta wrote is refused."
        ),
    ),
    cfg.StrOpt(
        "http_tokens",
        default="optional",
        choices=list(_HTTP_TOKENS.items()),
        help="EC2's tokens against forged requests (IMDSv2), with every backend. A record's own "
        "word (dfmeta store put --http-tokens) and http_tokens_of come before it.",
    ),
    cfg.StrOpt(
        "ec2_tree",
        default="cloud-init",
        choices=list(_EC2_TREES.items()),
        help="What guests get below /2009-04-04. Every other version, and /latest, is always the "
        "tree that cloud-init crawls.",
    ),
    cfg.StrOpt("api_url", default="", help=_TEMPLATE.format(name="api_url", path="api")),
    cfg.StrOpt(
        "phone_home_url",
        default="",
        help=_TEMPLATE.format(name="phone_home_url", path="phone-home"),
    ),
    cfg.StrOpt(
        "user_state_url", default="", help=_TEMPLATE.format(name="user_state_url", path="events")
    ),
    cfg.DictOpt(
        "http_tokens_of",
        default={},
        help="The same for single instances: a comma list of UUID:off, UUID:optional and "
        "UUID:required. It comes before a record's own word, and is there for backends whose "
        "records have none, such as Nova.",
    ),
]


TEMPLATES: Final = ("api_url", "phone_home_url", "user_state_url")
"""Options that are templates for the member of the same name."""


def http_tokens_of(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Read http_tokens_of: instance id in lower case → mode.

    :raises ConfigError: for an entry that is not an instance and a mode, and a second one of the
        same instance.
    """
    modes: dict[str, str] = {}
    for name, mode in conf.store.http_tokens_of.items():
        instance = name.lower()
        if not _UUID.fullmatch(instance):
            raise _wrong_entry(name, mode, "it does not begin with a UUID with dashes")
        if mode not in _HTTP_TOKENS:
            raise _wrong_entry(name, mode, "there is no such mode")
        if instance in modes:
            raise _wrong_entry(name, mode, "the instance is there twice")
        modes[instance] = mode
    return modes


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    http_tokens_of(conf)


def _wrong_entry(name: str, mode: str, cause: str) -> ConfigError:
    remedy = f"Give each instance once, as UUID:MODE, with a mode of {', '.join(_HTTP_TOKENS)}"
    return wrong("http_tokens_of", cause, value=f"{name}:{mode}", remedy=remedy)


def wrong(option: str, cause: str, *, remedy: str, value: str = "") -> ConfigError:
    """Return the error for an option of the group."""
    return ConfigError(option=f"[{GROUP.name}] {option}", value=value, cause=cause, remedy=remedy)
