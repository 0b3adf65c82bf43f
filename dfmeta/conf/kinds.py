"""Types of options beyond those of oslo.config, and checks that several groups share.

The errors of the types name the reason and never the value, which may be a secret: the caller
decides whether to show the value.
"""

import contextlib
import pwd
import re
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

from oslo_config import cfg, types

from dfmeta.errors import ConfigError

HTTP_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
"""URL of a host and a path alone: a user and password would appear in logs."""
HAPROXY_ACCOUNT: Final = "dfmeta-haproxy"
WORKER_ACCOUNT: Final = "dfmeta-worker"
"""Accounts that etc/sysusers.d/dfmeta.conf makes."""
NOBODY: Final = 65534
"""User id of ``nobody``, which many programs take (user_namespaces(7), overflowuid)."""
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}")


class Text(types.String):
    """A string of a given form.

    :param noun: name of the form; follows "it is not" in the reason.
    :param fits: returns a true value for a string of that form; may raise ValueError for others.
    :param example: follows "Give one such as" in the remedy.
    :param optional: accept an empty value, which counts as unset.
    """

    def __init__(
        self,
        noun: str,
        fits: Callable[[str], object],
        *,
        example: str,
        optional: bool = False,
        type_name: str = "string value",
    ) -> None:
        super().__init__(type_name=type_name)
        self.noun, self.fits, self.optional = noun, fits, optional
        self.wanted = f"one such as {example}"

    def __call__(self, value: Any) -> str:
        text = str(value)
        with contextlib.suppress(ValueError):
            if (self.optional and not text) or self.fits(text):
                return text
        raise ValueError(f"it is not {self.noun}")


class Several(types.List):
    """Values of one type with commas between them; an error names the wrong value.

    :param item: type of a value: a :class:`Text`, or a type of oslo.config with choices.
    :param least: smallest number of values.
    """

    def __init__(self, item: Any, *, least: int = 1) -> None:
        super().__init__(item)
        self.least = least
        choices = ", ".join(map(str, getattr(item, "choices", None) or ()))
        some = f"some of {choices}," if choices else f"{item.wanted}, or several"
        self.wanted = f"{some} with commas between them"

    def __call__(self, value: Any) -> list[Any]:
        texts = value.strip().rstrip(",").split(",") if isinstance(value, str) else value
        given = [str(text).strip() for text in texts if texts != [""]]
        if len(given) < self.least:
            raise ValueError("it is empty")
        return [self._item(text) for text in given]

    def _item(self, text: str) -> Any:
        try:
            return self.item_type(text)
        except ValueError as error:
            noun = getattr(self.item_type, "noun", "one of the choices")
            raise ValueError(f"{text!r} is not {noun}") from error


address: Final = partial(Text, type_name="IP address value")
network: Final = partial(Text, type_name="IP network value")
absolute_path: Final = partial(Text, "an absolute path", lambda text: text.startswith("/"))
http_url: Final = partial(Text, "an http or https URL of a host and a path alone")
host_port: Final = partial(
    Text,
    "HOST:PORT with a port from 1 to 65535",
    lambda text: _HOST_PORT.fullmatch(text) and has_port(text),
)


def reloaded(*options: cfg.Opt, but: Sequence[str] = ()) -> list[cfg.Opt]:
    """Return *options* with ``mutable=True``: a SIGHUP reloads them.

    :param but: names of those among them that need a restart.
    """
    for option in options:
        option.mutable = option.name not in but
    return list(options)


def ipv4_network(prefixes: range, *, but: str = "", example: str) -> Text:
    """Return the type of an IPv4 network for addresses of guests.

    :param prefixes: prefix lengths that it may have.
    :param but: an address that it must not contain.
    """

    def fits(text: str) -> bool:
        subnet = IPv4Network(text)
        first = subnet.network_address
        reserved = first.is_loopback or first.is_multicast or first.is_unspecified
        return (
            subnet.prefixlen in prefixes
            and not reserved
            and not (but and IPv4Address(but) in subnet)
        )

    return network(
        f"an IPv4 network of prefix length {prefixes[0]} to {prefixes[-1]} that is neither "
        f"multicast nor in 127.0.0.0/8{but and f', without {but}'}",
        fits,
        example=example,
    )


def has_port(text: str) -> bool:
    """Return whether the digits after the last colon are a TCP port; True if there are none."""
    port = text.rpartition(":")[2]
    return not port.isdigit() or 1 <= int(port) <= 65535


def without_password(text: str) -> str:
    """Return a URL without its user and password, for use in a message."""
    before, slashes, rest = text.partition("//")
    _user, at, host = rest.rpartition("@")
    return f"{before}{slashes}(hidden)@{host}" if at else text


def account_of(configured: str, default: str) -> str:
    """Return the name of the account that a process becomes; empty: an unused user id.

    :param configured: value of the option.
    :param default: name of the account that dfmeta's package makes.
    """
    if configured:
        return configured
    try:
        pwd.getpwnam(default)
    except KeyError:
        return ""
    return default


def check_user(option: str, value: str) -> None:
    """Check the name of a user that a process becomes; an empty one is right.

    :param option: the option's group and name.
    :raises ConfigError: when there is no such user, it is root, or other programs are this user.
    """
    if not value:
        return
    try:
        uid = pwd.getpwnam(value).pw_uid
    except (KeyError, ValueError):
        cause = "there is no such user"
    else:
        if uid and uid != NOBODY and value != "nobody":
            return
        cause = "other programs may run as this user, and read secrets" if uid else "it is root"
    raise ConfigError(
        option=option,
        value=value,
        cause=cause,
        remedy="Leave it empty, or name a user that no other program runs as",
    )


def check_file(option: str, path: str | None) -> None:
    """Check that the file at *path*, the value of *option*, can be read; do nothing if it is empty.

    :raises ConfigError: naming the option.
    """
    if not path:
        return
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise ConfigError(
            option=option,
            value=path,
            cause=error.strerror,
            remedy="Name a PEM file that the daemon may read",
        ) from error
