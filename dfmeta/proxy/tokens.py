"""EC2's token handshake (IMDSv2), which keeps forged requests from reading metadata.

A program in the guest gets a token with a PUT and a header, and sends it with each request. An
attacker who makes a server in the guest fetch a URL can do neither, and a request that an open
proxy forwards contains ``X-Forwarded-For`` or a similar header and gets no token. See "Use the
Instance Metadata Service to access instance metadata" in the EC2 User Guide.

Trust: path and headers come from the guest. So does a token, until its MAC is checked. A token is
valid only for the metadata of the instance and port that it was issued for, and these are
determined by the port that the request arrived on.
"""

import abc
import base64
import contextlib
import enum
import errno
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from dfmeta.errors import StartError
from dfmeta.model import TTL_MAX, Answer, GuestRequest, Identity, Port
from dfmeta.runtime import clock
from dfmeta.store.guest.requests import split_path

LOG = logging.getLogger(__name__)

TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105  # a path
TOKEN_HEADER: Final = "x-aws-ec2-metadata-token"  # noqa: S105  # a header's name
TTL_HEADER: Final = "x-aws-ec2-metadata-token-ttl-seconds"
KEY_FILE: Final = "token.key"
KEY_BYTES: Final = hashlib.sha256().digest_size
NO_KEY: Final = f"it is not {KEY_BYTES} bytes long"
KEY_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

_VERSION: Final = 1
_HEAD: Final = struct.Struct("!HQ")
"""Version, and time of expiry in milliseconds of Unix time."""
_LENGTH: Final = struct.Struct("!I")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{56}", re.ASCII)
"""Base64url (RFC 4648, 5) of head and MAC, 42 bytes: without padding and without unused bits, so
that each token has only one spelling."""
_TTL: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_FORWARDING: Final = frozenset({"x-forwarded-for", "forwarded", "via"})
"""Headers that a proxy adds (RFC 7239; RFC 9110, 7.6.3). There is no proxy between a guest and its
metadata service: a request with one of them was made for another client."""
_SEGMENTS: Final = TOKEN_PATH.strip("/").split("/")

_NOT_FOUND: Final = Answer(404, b"404 Not Found\n")
_NO_PUT: Final = Answer(405, b"405 Method Not Allowed\n", headers=(("Allow", "PUT"),))
_FORWARDED: Final = Answer(403, b"403 Forbidden: a proxy passed this request on\n")
_BAD_TTL: Final = Answer(
    400, f"400 Bad Request: {TTL_HEADER} has to be a number from 1 to {TTL_MAX}\n".encode()
)
_NO_KEY_YET: Final = Answer(503, b"503 Service Unavailable\n", headers=(("Retry-After", "2"),))
_NO_TOKEN: Final = Answer(401, b"401 Unauthorized\n", headers=(("WWW-Authenticate", "Bearer"),))


T = TypeVar("T")


class TokenMode(enum.StrEnum):
    """Whether an instance uses tokens: ``[store] http_tokens``."""

    OFF = "off"
    """No tokens are issued or checked."""
    OPTIONAL = "optional"
    """Requests without a token are answered."""
    REQUIRED = "required"
    """Requests without a token are refused."""


class _Tokens(abc.ABC, Generic[T]):
    """Issues and verifies tokens without storing them.

    :param key: signing key, :data:`KEY_BYTES` random bytes; empty: there is none yet.
    :param clock: seconds of Unix time, since a token outlives the process.
    """

    def __init__(self, key: bytes, *, clock: Callable[[], float] = clock.wall) -> None:
        self.key = key
        """While it is empty no token is valid, and none can be issued."""
        self._clock = clock

    def issue(self, holder: T, ttl: int) -> str:
        """Return a token for *holder* alone.

        :param ttl: seconds for which it is valid, 1 to :data:`TTL_MAX`.
        """
        head = _HEAD.pack(_VERSION, self._now() + ttl * 1000)
        return base64.urlsafe_b64encode(head + self._mac(head, holder)).decode()

    def valid(self, token: str, holder: T) -> bool:
        """Whether the untrusted *token* was issued for *holder* and has not expired."""
        if not self.key or not _TOKEN.fullmatch(token):
            return False
        raw = base64.urlsafe_b64decode(token)
        head, mac = raw[: _HEAD.size], raw[_HEAD.size :]
        if not hmac.compare_digest(mac, self._mac(head, holder)):
            return False
        version, expires = _HEAD.unpack(head)
        left: int = expires - self._now()
        # A token that is valid for longer than TTL_MAX was issued while the clock was wrong.
        return bool(version == _VERSION) and 0 < left <= TTL_MAX * 1000

    @abc.abstractmethod
    def _bound(self, holder: T) -> tuple[str, ...]:
        """Return the texts that a token is bound to."""

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _mac(self, head: bytes, holder: T) -> bytes:
        if not self.key:
            raise ValueError("there is no key")
        mac = hmac.new(self.key, head, hashlib.sha256)
        for text in self._bound(holder):
            part = text.encode("utf-8", "surrogatepass")
            # With its length, so that different lists of texts never give the same bytes.
            mac.update(_LENGTH.pack(len(part)) + part)
        return mac.digest()


class Tokens(_Tokens[Identity]):
    """EC2's tokens, for an instance's metadata: each is for the instance on its port."""

    def _bound(self, holder: Identity) -> tuple[str, ...]:
        return (holder.instance_id.lower(), holder.port_id)


class AttachmentTokens(_Tokens[Port]):
    """The tokens of the API of attachments, see :class:`dfmeta.attach.api.TokenIssuer`.

    A token is for the instance at a port, for as long as the port's row exists: a port that is
    created again, for the same instance or for another, needs a new one. It outlives the daemon.
    No token of another kind is valid here, or the reverse: the other kinds are bound to other
    numbers of texts.
    """

    def _bound(self, holder: Port) -> tuple[str, ...]:
        return ("attachments", holder.instance_id.lower(), holder.iface_id, holder.row)


def is_token_path(path: str) -> bool:
    """Whether an origin-form path is :data:`TOKEN_PATH` in any spelling."""
    # The first check is fast and excludes nearly all other paths.
    return ("%" in path or "token" in path) and split_path(path) == _SEGMENTS


def passed_on(request: GuestRequest) -> bool:
    """Whether the request has a header of a proxy, in any spelling."""
    return any(name.replace("_", "-") in _FORWARDING for name in request.headers)


def handshake(
    request: GuestRequest, identity: Identity, mode: TokenMode, tokens: Tokens
) -> Answer | None:
    """Return the handshake's own answer; None if the request goes on to the backend.

    :param request: untrusted. A repeated header is one value that contains a comma, which is
        neither a valid TTL nor a valid token.
    :param identity: identity of an instance that the backend knows.
    """
    if is_token_path(request.path):
        return _NOT_FOUND if mode is TokenMode.OFF else _token(request, identity, tokens)
    token = request.headers.get(TOKEN_HEADER)
    if mode is TokenMode.OFF or (token is None and mode is TokenMode.OPTIONAL):
        return None
    return None if token is not None and tokens.valid(token, identity) else _NO_TOKEN


def unusable_key(folder: Path) -> str:
    """Return the reason why :func:`load_key` would refuse the key in *folder*; empty if none.

    Nothing is changed. A missing key is not a reason, since the daemon makes it.
    """
    path = folder / KEY_FILE
    try:
        if path.stat().st_size == KEY_BYTES and path.is_file():
            return ""
        return _unusable(path, NO_KEY).cause
    except FileNotFoundError:
        return ""
    except OSError as error:
        return _unusable(path, error.strerror or str(error)).cause


def load_key(folder: Path, *, make: Callable[[int], bytes] = secrets.token_bytes) -> bytes | None:
    """Return the key that signs tokens, and create it at first use; None: the disk is full.

    :param folder: state_path; created with mode 0700 if it is missing. Several processes that
        start at the same time get the same key.
    :param make: return this many random bytes.
    :raises StartError: when the file cannot be created or read, or does not contain a key.
    """
    path = folder / KEY_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_key(path, make(KEY_BYTES))
        key = _read_key(path)
    except OSError as error:
        if error.errno in NO_ROOM:
            return None
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
    if not tokens.key:
        return _NO_KEY_YET
    token = tokens.issue(identity, ttl)
    return Answer(200, token.encode(), "text/plain", ((TTL_HEADER, str(ttl)),))


def _make_key(path: Path, key: bytes) -> None:
    """Create the complete key file, unless another process was faster."""
    # mkstemp creates the file with mode 0600.
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
    # Without O_NONBLOCK, the open of a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _unusable(path, "it is not a regular file")
        if stat.S_IMODE(mode) & ~KEY_MODE:
            os.fchmod(descriptor, KEY_MODE)
            LOG.warning(
                "%s was readable by other users: its mode is now 0600. If they read it, remove it "
                "and restart the daemon",
                path,
            )
        return file.read(KEY_BYTES + 1)


def _unusable(path: Path, cause: str) -> StartError:
    return StartError(
        cause=f"{path}, which signs guests' tokens, cannot be used: {cause}",
        remedy="Remove it and start again: dfmeta makes a new key, and guests get new tokens",
    )
