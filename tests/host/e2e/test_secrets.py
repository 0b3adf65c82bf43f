"""At DEBUG, through a day with all that may happen, the daemon tells nobody's secrets."""

import base64
import hashlib
import hmac
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness.agent import Agent
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Reply
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    KEY,
    META_DATA,
    PROJECT,
    Capture,
    open_connection,
    project_ids,
    put_nova,
    read_all,
)

StartBoot = Callable[..., Booting]
ANOTHER_SECRET = "quite another secret"
PASSWORD = b"pa55word-0f-th1s-guest \x00\xff"
PASSWORD_PATH = "/openstack/2013-04-04/password"
TOKEN_PATH = "/latest/api/token"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
SHOWN = "/openstack/latest/shown-in-the-log"
USER_DATA = b"""#!/bin/sh
# db_password=hunter2-of-the-user-data api_key=0f9e8d7c6b5a
hostname > /run/ran-on
"""
PIECE = 12
"""Bytes of a secret that are too many."""
MARK = "marker-that-nobody-may-find"
HOST = f"Host: {MARK}.example.org\r\n"
POST = f"POST {PASSWORD_PATH} HTTP/1.1\r\n{HOST}"
HEADERS = [
    *((name, MARK) for name in ("Authorization", "Cookie", "User-Agent", "Referer", "Accept")),
    *((name, MARK) for name in ("X-Instance-ID", "X_Tenant_ID", "X-Instance-ID-Signature")),
    *((name, MARK) for name in ("X-Forwarded-For", "Via", "Content-Type", MARK)),
]
RAW = [
    f"GET http://{MARK}/ HTTP/1.1\r\n{HOST}\r\n",
    f"{MARK} HTTP/1.1\r\n{HOST}\r\n",
    f"GET / HTTP/1.1\r\n{HOST}X-A: a\r\n {MARK}\r\n\r\n",
    f"GET / HTTP/1.1\r\n{HOST}{MARK}\r\n\r\n",
    f"GET /?{MARK * 100} HTTP/1.1\r\n{HOST}\r\n",
    f"GET / HTTP/1.1\r\n{HOST}X-A: {MARK * 400}\r\n\r\n",
    f"{POST}Transfer-Encoding: chunked\r\n\r\n{MARK}\r\n",
    f"{POST}Transfer-Encoding: {MARK}\r\n\r\n",
    f"{POST}Content-Length: {MARK}\r\n\r\n",
    f"{POST}Content-Length: 9999\r\n\r\n{MARK}",
]
ACCESS = re.compile(r"^\S+ \S+ DEBUG dfmeta\.proxy\.access ", re.MULTILINE)


class Day:
    """One guest's requests to one daemon, their number, and what nobody is to find."""

    def __init__(self, agent: Agent, guest: Guest) -> None:
        self.agent = agent
        self.guest = guest
        self.asked = 0
        self.written = b""
        self.secrets: dict[str, bytes] = {
            "user-data": USER_DATA,
            "a key": KEY.encode(),
            "the password": PASSWORD,
            "the shared secret": SECRET.encode(),
            "another shared secret": ANOTHER_SECRET.encode(),
            "a marker": MARK.encode(),
        }
        for secret in (SECRET, ANOTHER_SECRET):
            signature = hmac.new(secret.encode(), guest.instance_id.encode(), hashlib.sha256)
            self.secrets[f"a signature with {secret}"] = signature.hexdigest().encode()

    def curl(self, path: str, *options: str, **values: object) -> Reply:
        """Ask, and count it."""
        self.asked += 1
        return self.guest.curl(path, *options, **values)  # type: ignore[arg-type]  # passed on

    def boot(self, host: OpenvSwitch, cloud_init: StartBoot) -> None:
        """Boot, and count what is asked."""
        with Capture(host.namespace, self.guest.port) as capture:
            boot = cloud_init(self.guest, files=["/run/ran-on"]).finish()
            self.asked += len({syn.source_port for syn in capture.syns()})
        assert boot.errors == []
        assert boot.user_data == USER_DATA

    def morning(self) -> None:
        """What a guest asks whose every word is a secret."""
        seed = json.loads(self.curl(META_DATA).body)["random_seed"]
        self.secrets["the random seed"] = seed.encode()
        assert self.curl(PASSWORD_PATH, data=PASSWORD).status == 200
        assert self.curl(PASSWORD_PATH).body == PASSWORD
        assert self.curl(PASSWORD_PATH, data=PASSWORD).status == 409
        issued = self.curl(TOKEN_PATH, "-X", "PUT", headers=[(TTL_HEADER, "600")])
        assert issued.status == 200
        token = issued.text
        self.secrets["a token"] = token.encode()
        assert self.curl("/latest/user-data", headers=[(TOKEN_HEADER, token)]).body == USER_DATA
        assert self.curl(META_DATA, headers=[(TOKEN_HEADER, token + MARK)]).status == 401

    def hostile(self) -> None:
        """What a guest asks that would like to see its words in the log."""
        self.curl(f"{META_DATA}?{MARK}={MARK}", headers=HEADERS)
        self.curl(SHOWN, "-X", "PUT", data=MARK.encode(), headers=HEADERS)
        self.curl(f"/latest/%0d%0a{SHOWN}?{MARK}")
        for raw in RAW:
            self.asked += 1
            with open_connection(self.guest) as connection:
                connection.sendall(raw.encode())
                assert read_all(connection).startswith(b"HTTP/1.1 4")

    def read(self) -> bytes:
        """All that the running daemon shows, and the ones before it have shown."""
        folder = Path(f"/proc/{self.agent.pid}")
        self.written += self.agent.admin("/metrics").body + self.agent.admin("/ports").body
        self.written += (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        self.written += (self.agent.state_path / "state.json").read_bytes()
        return self.written + self.agent.stderr.read_bytes()

    def restart(self) -> None:
        """End one daemon, whose words stay, and start the next."""
        self.read()
        self.agent.restart()

    def reload(self, message: str, **default: object) -> None:
        """SIGHUP, and wait for what the daemon says."""
        before = self.agent.log().count(message)
        self.agent.configure({"DEFAULT": default})
        self.agent.signal(signal.SIGHUP)
        wait_for(lambda: self.agent.log().count(message) > before, message)

    def lines(self) -> int:
        """How many lines of requests there are."""
        return len(ACCESS.findall(self.agent.log()))

    def assert_discreet(self) -> None:
        """A line for each request, and nothing secret anywhere."""
        wait_for(lambda: self.lines() >= self.asked, "the last line")
        text = self.read()
        # What would be found, if it were there.
        assert found_in(text, SHOWN.encode())
        assert PROJECT.encode() in text
        assert b"dfmeta_requests_total" in text
        assert b"--config-file" in text
        assert [name for name, secret in self.secrets.items() if found_in(text, secret)] == []
        assert self.lines() == self.asked


def pieces(secret: bytes) -> Iterator[bytes]:
    """What of a secret is enough to know it by: any piece, as it is and in other spellings."""
    for start in range(max(1, len(secret) - PIECE + 1)):
        piece = secret[start : start + PIECE]
        yield piece
        yield repr(piece)[2:-1].encode()
        yield piece.hex().encode()
        # Without the end, which depends on what follows.
        yield base64.b64encode(piece)[: PIECE * 4 // 3]


def found_in(text: bytes, secret: bytes) -> bool:
    """Whether some piece of it is there."""
    return any(piece in text for piece in pieces(secret))


def test_no_secret_is_logged_or_shown_where_nova_answers(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    nova: RecordingNova,
    cloud_init: StartBoot,
) -> None:
    agent = make_agent(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": SECRET, "debug": True},
            "df_metadata": {"backend": "nova", "hold_timeout": 1.5},
        }
    )
    guest = make_guest("web", ids=project_ids("web"))
    put_nova(nova, guest, keys={"key-1": KEY}, user_data=USER_DATA)
    day = Day(agent, guest)
    day.boot(host, cloud_init)
    day.morning()
    day.hostile()

    for status in (403, 404, 500):
        nova.fault(status=status)
        assert day.curl(f"/latest/user-data?{MARK}", headers=HEADERS).status == status
        nova.mend()
    nova.fault("user-data", cut=20)
    assert day.curl(f"/latest/user-data?{MARK}", headers=HEADERS).status == 503
    nova.mend()
    nova.fault(PASSWORD_PATH, close=True)
    assert day.curl(PASSWORD_PATH, data=PASSWORD, headers=HEADERS).status == 504
    nova.mend()
    nova.away()
    assert day.curl(f"/latest/user-data?{MARK}", headers=HEADERS).status == 503
    assert day.curl(f"{META_DATA}?{MARK}").status == 0
    nova.back()

    day.reload("Reloaded", metadata_proxy_shared_secret=ANOTHER_SECRET)
    assert day.curl(META_DATA).status == 403
    day.reload("Not reloaded", metadata_proxy_shared_secret=SECRET, nova_metadata_port="soon")
    day.reload("Reloaded", nova_metadata_port=None)
    assert day.curl("/latest/user-data").body == USER_DATA
    day.restart()
    assert day.curl("/latest/user-data").body == USER_DATA
    day.assert_discreet()
