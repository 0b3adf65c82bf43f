"""EC2's token handshake (IMDSv2), which keeps a forged request from reading metadata.

A guest's program fetches a token with a PUT and a header of its own, and shows it with each
request. A server in the guest that can be talked into fetching a URL can do neither, and what an
open proxy passes on has ``X-Forwarded-For`` or the like in it and gets no token. See "Use the
Instance Metadata Service to access instance metadata" in the EC2 User Guide.

Trust: path and headers are the guest's. A token is the guest's as well until its MAC is checked; it
opens nothing but the metadata of the instance and port that it was issued to, and those come from
the port that the request came in on.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dfmeta.exceptions import StartError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.guest.paths import split_path

LOG = logging.getLogger(__name__)

TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105  # a path
TOKEN_HEADER: Final = "x-aws-ec2-metadata-token"  # noqa: S105  # a header's name
TTL_HEADER: Final = "x-aws-ec2-metadata-token-ttl-seconds"
TTL_MAX: Final = 21600
"""Seconds; EC2's limit."""
KEY_FILE: Final = "token.key"
KEY_BYTES: Final = 32
NO_KEY: Final = f"it does not hold {KEY_BYTES} bytes"
KEY_MODE: Final = 0o600

_VERSION: Final = 1
_HEAD: Final = struct.Struct("!HQ")
"""Version, and when it expires in milliseconds of Unix time."""
_LENGTH: Final = struct.Struct("!I")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{56}", re.ASCII)
"""Base64url (RFC 4648, 5) of head and MAC, 42 bytes: without padding and without spare bits, so
that a token has one spelling."""
_TTL: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_FORWARDING: Final = frozenset({"x-forwarded-for", "forwarded", "via"})
"""What a proxy adds on the way (RFC 7239; RFC 9110, 7.6.3). Nothing is between a guest and its
service: such a request was made for somebody else."""
_SEGMENTS: Final = TOKEN_PATH.strip("/").split("/")

_NOT_FOUND: Final = Answer(404, b"404 Not Found\n")
_NO_PUT: Final = Answer(405, b"405 Method Not Allowed\n", headers=(("Allow", "PUT"),))
_FORWARDED: Final = Answer(403, b"403 Forbidden: a proxy passed this request on\n")
_BAD_TTL: Final = Answer(
    400, f"400 Bad Request: {TTL_HEADER} has to be a number from 1 to {TTL_MAX}\n".encode()
)
_NO_TOKEN: Final = Answer(401, b"401 Unauthorized\n", headers=(("WWW-Authenticate", "Bearer"),))


class TokenMode(enum.StrEnum):
    """What tokens are to an instance: ``[store] http_tokens``."""

    OFF = "off"
    """Nothing."""
    OPTIONAL = "optional"
    """Requests without one go on."""
    REQUIRED = "required"
    """They do not."""


class Tokens:
    """Issues tokens and knows them again. Keeps none of them.

    :param key: what they are signed with, :data:`KEY_BYTES` random bytes.
    :param clock: seconds of Unix time, since a token outlives the process.
    """

    def __init__(self, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock

    def issue(self, identity: Identity, ttl: int) -> str:
        """Return a token for *identity*'s instance on its port.

        :param ttl: seconds that it is valid, 1 to :data:`TTL_MAX`.
        """
        head = _HEAD.pack(_VERSION, self._now() + ttl * 1000)
        return base64.urlsafe_b64encode(head + self._mac(head, identity)).decode()

    def valid(self, token: str, identity: Identity) -> bool:
        """Whether *token*, of which nothing is known, is one of *identity*'s and not expired."""
        if not _TOKEN.fullmatch(token):
            return False
        raw = base64.urlsafe_b64decode(token)
        head, mac = raw[: _HEAD.size], raw[_HEAD.size :]
        if not hmac.compare_digest(mac, self._mac(head, identity)):
            return False
        version, expires = _HEAD.unpack(head)
        left: int = expires - self._now()
        # What is valid for longer than any token may be was issued by a clock that was wrong.
        return bool(version == _VERSION) and 0 < left <= TTL_MAX * 1000

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _mac(self, head: bytes, identity: Identity) -> bytes:
        mac = hmac.new(self._key, head, hashlib.sha256)
        for text in (identity.instance_id.lower(), identity.port_id):
            part = text.encode("utf-8", "surrogatepass")
            # With its length, so that no two pairs of ids read the same.
            mac.update(_LENGTH.pack(len(part)) + part)
        return mac.digest()


def is_token_path(path: str) -> bool:
    """Whether an origin-form path is :data:`TOKEN_PATH`, however the guest spells it."""
    # Of other paths, and that is nearly all, this much is seen at a glance.
    return ("%" in path or "token" in path) and split_path(path) == _SEGMENTS


def passed_on(request: GuestRequest) -> bool:
    """Whether a proxy says, in any spelling of its header, that the request came through it."""
    return any(name.replace("_", "-") in _FORWARDING for name in request.headers)


def handshake(
    request: GuestRequest, identity: Identity, mode: TokenMode, tokens: Tokens
) -> Answer | None:
    """Answer what the handshake itself answers; None when the request goes on to the backend.

    :param request: all of it untrusted. A header that was sent twice is one value with a comma in
        it, which is neither a TTL nor a token.
    :param identity: of an instance that the backend knows.
    """
    if is_token_path(request.path):
        return _NOT_FOUND if mode is TokenMode.OFF else _token(request, identity, tokens)
    token = request.headers.get(TOKEN_HEADER)
    if mode is TokenMode.OFF or (token is None and mode is TokenMode.OPTIONAL):
        return None
    return None if token is not None and tokens.valid(token, identity) else _NO_TOKEN


def unusable_key(folder: Path) -> str:
    """Say why :func:`load_key` would refuse the key in *folder*; empty where it would not.

    Nothing is changed. A key that is not there is made by the daemon.
    """
    path = folder / KEY_FILE
    try:
        if path.stat().st_size == KEY_BYTES and path.is_file():
            return ""
        return str(_unusable(path, NO_KEY).fields["cause"])
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(_unusable(path, error.strerror or str(error)).fields["cause"])


def load_key(folder: Path, *, make: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Return the key that tokens are signed with, and make it at first use.

    :param folder: state_path; made with mode 0700 when it is missing. Of several processes that
        begin at once, all get the same key.
    :param make: gives so many random bytes.
    :raises StartError: when the file cannot be made or read, or does not hold a key.
    """
    path = folder / KEY_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_key(path, make(KEY_BYTES))
        key = _read_key(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(key) != KEY_BYTES:
        raise _unusable(path, NO_KEY)
    return key


def _token(request: GuestRequest, identity: Identity, tokens: Tokens) -> Answer:
    if request.method != "PUT":
        return _NO_PUT
    if passed_on(request):
        return _FORWARDED
    written = request.headers.get(TTL_HEADER, "")
    ttl = int(written) if _TTL.fullmatch(written) else 0
    if not 1 <= ttl <= TTL_MAX:
        return _BAD_TTL
    token = tokens.issue(identity, ttl)
    return Answer(200, token.encode(), "text/plain", ((TTL_HEADER, str(ttl)),))


def _make_key(path: Path, key: bytes) -> None:
    """Put a whole key there, unless another process was faster."""
    # Its mode is 0600 from the first moment.
    descriptor, name = tempfile.mkstemp(prefix=f"{KEY_FILE}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def _read_key(path: Path) -> bytes:
    # A pipe would keep the daemon waiting for who writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _unusable(path, "it is not a file")
        if stat.S_IMODE(mode) & ~KEY_MODE:
            os.fchmod(descriptor, KEY_MODE)
            LOG.warning(
                "%s could be read by others: narrowed to 0600. If they did, remove it and restart",
                path,
            )
        return file.read(KEY_BYTES + 1)


def _unusable(path: Path, cause: str) -> StartError:
    return StartError(
        cause=f"{path}, which signs guests' tokens, cannot be used: {cause}",
        remedy="Remove it and start again: another one is made, and guests take new tokens",
    )
