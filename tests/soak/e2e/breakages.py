"""Hosts broken in one way each, as doc/source/runbook.rst has them, with the symptom seen."""

import errno
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dfmeta.store.auth.tokens import Grant, add, new_token
from dfmeta.store.db.repository import Repository
from tests.harness.agent import Agent, program
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.netns import tx_off
from tests.harness.nova import RecordingNova
from tests.harness.other_store import Last, OtherStore
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import script
from tests.host.e2e.support import META_DATA, project_ids, put_nova

ETHTOOL = shutil.which("ethtool")
HANGS = 0.6
"""Seconds that a guest waits for an answer that does not come."""
# curl(1), "EXIT CODES"; the words of curl differ with the step that took too long.
CURL_TIMED_OUT = 28
CURL_EMPTY_REPLY = 52
OPTIONS = {
    "df_metadata": {"refuse_forwarded": True},
    "metadata_rate_limiting": {
        "rate_limit_enabled": True,
        "base_query_rate_limit": 20,
        "base_window_duration": 1000,
        "burst_query_rate_limit": 20,
        "burst_window_duration": 1000,
        "delay_max": 0,
        "tolerated_queries": 0,
    },
    "store": {"max_body": 4096},
}
"""Of a daemon on which every breakage of the store can be made."""


@dataclass
class Stage:
    """A host, its daemon, and what the page's placeholders stand for."""

    host: OpenvSwitch
    agent: Agent
    stack: ExitStack
    nova: RecordingNova | None = None
    names: dict[str, str] = field(default_factory=dict)

    def guest(self, name: str, **values: Any) -> Guest:
        """One more guest, of which PORT and INSTANCE stand from now on."""
        guest = self.stack.enter_context(Guest(self.host, name, **values))
        self.names |= {"PORT": guest.port, "INSTANCE": guest.instance_id}
        return guest

    def put(self, guest: Guest, **values: Any) -> None:
        """A record in the store, written past the daemon."""
        with Repository(f"sqlite:///{self.agent.state_path}/store.db") as repository:
            document = {"hostname": f"{guest.name}.example.org"}
            repository.put(guest.instance_id, document=document, **values)

    def run(self, command: str) -> str:
        """What a command of the page prints on the host, stdout and stderr as they come."""
        for name, value in self.names.items():
            command = re.sub(rf"\b{name}\b", value, command)
        # No systemd runs here: the log has times, and no priorities.
        log, journal = f"cut -d' ' -f3- {self.agent.stderr}", "journalctl -u dfmeta-agent -o cat"
        command = command.replace(f"{journal} -p warning", f"{log} | grep ^WARNING")
        command = command.replace(journal, log)
        command = command.replace("/etc/dfmeta/dfmeta.conf", str(self.agent.config_file))
        programs = self.agent.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("dfmeta", "dfmeta-agent"):
            script(programs / name, *program(name))
        shell = (
            f'dfmeta() {{ {programs}/dfmeta "$@" --config-file {self.agent.config_file}; }}; '
            f'PATH="{programs}:$PATH"; exec 2>&1; {command}'
        )
        return self.host.namespace.run(["sh", "-c", shell], check=False).stdout

    def reload(self, options: Mapping[str, Mapping[str, object]]) -> None:
        """Change options while the daemon runs."""
        before = self.agent.log().count("Reloaded")
        self.agent.configure(options)
        self.agent.signal(signal.SIGHUP)
        wait_for(lambda: self.agent.log().count("Reloaded") > before, "the reload")


Breakage = Callable[[Stage], AbstractContextManager[None]]


def hangs(guest: Guest) -> None:
    """The guest's curl gets nothing."""
    reply = guest.curl("/latest/meta-data/", timeout=HANGS)
    assert (reply.status, reply.exit_code) == (0, CURL_TIMED_OUT), reply.error


@contextmanager
def cut_off(stage: Stage) -> Iterator[None]:
    """A port that the switch takes no frames from."""
    guest = stage.guest("muted")
    assert guest.curl("/").status == 404
    stage.host.ofctl("mod-port", BRIDGE, guest.port, "no-receive")
    hangs(guest)
    cut_off_ports = partial(stage.agent.metric, "dfmeta_ports", state="cut off")
    wait_for(cut_off_ports, "the state of the port")
    yield
    stage.host.ofctl("mod-port", BRIDGE, guest.port, "receive")


@contextmanager
def tap_cut_off(stage: Stage) -> Iterator[None]:
    """tap-metadata gets no frame from the switch."""
    guest = stage.guest("one-of-all")
    stage.host.ofctl("mod-port", BRIDGE, "tap-metadata", "no-forward")
    hangs(guest)
    yield
    stage.host.ofctl("mod-port", BRIDGE, "tap-metadata", "forward")
    assert guest.curl("/").status == 404


@contextmanager
def no_instance(stage: Stage) -> Iterator[None]:
    """A port without an instance."""
    ids = Ids(iface_id=uuid_of("port nobody"), vm_uuid="")
    hangs(stage.guest("nobody", ids=ids))
    yield


@contextmanager
def foreign_flow(stage: Stage) -> Iterator[None]:
    """A flow of another program before the hooks."""
    guest = stage.guest("hidden")
    flow = f"in_port={guest.ofport},ip,nw_dst={METADATA_IP}"
    stage.host.ofctl("add-flow", BRIDGE, f"cookie=0xbad,priority=400,{flow},actions=drop")
    hangs(guest)
    yield
    stage.host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")


@contextmanager
def no_connection(stage: Stage) -> Iterator[None]:
    """A namespace that leaves its checksums to its device, on a userspace datapath."""
    guest = stage.guest("offloading")
    assert ETHTOOL is not None
    guest.namespace.run([ETHTOOL, "-K", guest.device, "tx", "on"])

    def silent() -> bool:
        hangs(guest)
        return stage.agent.metric("dfmeta_ports", state="no connection") > 0

    wait_for(silent, "the state of the port")
    yield
    tx_off(guest.namespace, guest.device)
    wait_for(lambda: guest.curl("/", timeout=HANGS).status == 404, "the guest to be answered")


@contextmanager
def host_drops(stage: Stage) -> Iterator[None]:
    """A packet filter that lets none of the host's answers out."""
    guest = stage.guest("unanswered")
    nft = [str(UNPACKED / "usr/sbin/nft")]
    chain = "add chain inet f c { type filter hook output priority 0; }"
    rule = f"add rule inet f c ip saddr {METADATA_IP} drop"
    stage.host.namespace.run([*nft, f"add table inet f; {chain}; {rule}"])
    hangs(guest)
    yield
    stage.host.namespace.run([*nft, "flush ruleset"])
    wait_for(lambda: guest.curl("/", timeout=HANGS).status == 404, "the guest to be answered")


@contextmanager
def daemon_away(stage: Stage) -> Iterator[None]:
    """The daemon has ended; the guest's address is known, and the listener is kept."""
    guest = stage.guest("left-alone")
    assert guest.curl("/").status == 404
    stage.agent.stop()
    hangs(guest)
    yield
    stage.agent.start()


@contextmanager
def many_connections(stage: Stage) -> Iterator[None]:
    """A guest that keeps more connections than are served of one port."""
    guest = stage.guest("crowd")
    assert guest.curl("/").status == 404
    with ExitStack() as open_ones:
        for _ in range(20):
            open_ones.enter_context(guest.namespace.connect(METADATA_IP, 80))
        hit = "dfmeta_limits_hit_total"
        wait_for(lambda: stage.agent.metric(hit, limit="connections_per_port"), "the limit")
        yield


def _connecting(guest: Guest) -> int:
    """Why a connection of the guest's is not made; 0: it is."""
    try:
        guest.namespace.connect(METADATA_IP, 80).close()
    except OSError as error:
        return error.errno or 0
    return 0


@contextmanager
def refused(stage: Stage) -> Iterator[None]:
    """A port that is no guest's, and another guest with the address."""
    guest = stage.guest("plain", ids=Ids(iface_id="", vm_uuid="", attached_mac=False))
    other = stage.stack.enter_context(Guest(stage.host, "other", address="10.0.0.9/24"))
    other.add_address(f"{METADATA_IP}/32")
    assert _connecting(guest) == errno.ECONNREFUSED
    yield
    other.close()


@contextmanager
def no_route(stage: Stage) -> Iterator[None]:
    """A port that its owner has switched off."""
    guest = stage.guest("dead")
    stage.host.vsctl("set", "Port", guest.port, "tag=4095")
    guest.namespace.sysctl(**{"net.ipv4.neigh.eth0.retrans_time_ms": 50})
    guest.forget_neighbours()
    wait_for(lambda: stage.agent.metric("dfmeta_ports", state="dead") == 1, "the state")
    assert _connecting(guest) == errno.EHOSTUNREACH
    yield


def _answered(
    name: str, status: int, path: str = "/latest/meta-data/", *options: str, **record: Any
) -> Breakage:
    """A guest whose request has that status, with a record if there are members of one."""

    @contextmanager
    def breakage(stage: Stage) -> Iterator[None]:
        guest = stage.guest(name)
        if record:
            stage.put(guest, **{key: value for key, value in record.items() if value is not None})
        assert guest.curl(path, *options).status == status
        yield

    return breakage


@contextmanager
def too_often(stage: Stage) -> Iterator[None]:
    """A guest above its rate."""
    guest = stage.guest("greedy")
    samples = guest.http_many(25, concurrency=1)
    assert [sample.status for sample in samples][-1] == 429
    yield


@contextmanager
def _upstream(stage: Stage, port: int, **more: object) -> Iterator[None]:
    """The store is to ask another one at that port of the host."""
    options = {"lookup_base_url": f"http://127.0.0.1:{port}", "lookup_retries": 0, **more}
    stage.reload({"store": options})
    yield
    stage.reload({"store": {"lookup_base_url": None, **dict.fromkeys(more)}})


@contextmanager
def upstream_away(stage: Stage) -> Iterator[None]:
    """The store that is asked for what this one does not have does not answer."""
    with _upstream(stage, 9):
        assert stage.guest("waiting").curl("/latest/meta-data/").status == 503
        yield


@contextmanager
def looked_up(stage: Stage) -> Iterator[None]:
    """The same with another store, which was not found to be away yet."""
    with _upstream(stage, 10):
        assert stage.guest("searching").curl("/latest/meta-data/").status == 503
        yield


@contextmanager
def closed(stage: Stage) -> Iterator[None]:
    """The same, where cloud-init retries what is closed."""
    with _upstream(stage, 9):
        reply = stage.guest("retrying").curl(META_DATA)
        assert (reply.status, reply.exit_code) == (0, CURL_EMPTY_REPLY), reply.error
        yield


@contextmanager
def nonsense(stage: Stage) -> Iterator[None]:
    """Something else than a store answers upstream."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    with _upstream(stage, 8099), _answering(stage, answer):
        assert stage.guest("puzzled").curl("/latest/meta-data/").status == 502
        yield


@contextmanager
def slow(stage: Stage) -> Iterator[None]:
    """The store upstream takes its time."""
    with _upstream(stage, 8099, lookup_timeout=1), _answering(stage, b""):
        assert stage.guest("patient").curl("/latest/meta-data/").seconds > 0.9
        yield


@contextmanager
def another(stage: Stage) -> Iterator[None]:
    """A port that carries another instance's id."""
    first = stage.guest("first")
    stage.put(first)
    guest = stage.guest("second", ids=Ids(iface_id=uuid_of("2nd"), vm_uuid=first.instance_id))
    reply = guest.curl("/latest/meta-data/hostname")
    assert reply.text == "first.example.org"
    yield


@contextmanager
def no_key(stage: Stage) -> Iterator[None]:
    """A record without a key."""
    guest = stage.guest("locked")
    stage.put(guest)
    assert "public-keys/" not in guest.curl("/latest/meta-data/").text
    yield


@contextmanager
def password_set(stage: Stage) -> Iterator[None]:
    """A password that was posted before."""
    guest = stage.guest("twice")
    stage.put(guest)
    for status in (200, 409):
        assert guest.curl("/openstack/latest/password", data=b"c2VjcmV0").status == status
    yield


@contextmanager
def flows_gone(stage: Stage) -> Iterator[None]:
    """All flows are deleted, as Open vSwitch's restart does."""
    guest = stage.guest("restarted")
    stage.put(guest)
    assert guest.curl("/latest/meta-data/").status == 200
    reconciles = "dfmeta_reconciles_total"
    before = stage.agent.metric(reconciles, result="changed")
    stage.host.ofctl("del-flows", BRIDGE)
    stage.host.ofctl("add-flow", BRIDGE, "priority=0,actions=NORMAL")
    wait_for(lambda: stage.agent.metric(reconciles, result="changed") > before, "a comparison")
    assert guest.curl("/latest/meta-data/").status == 200
    yield


@contextmanager
def wrong_option(stage: Stage) -> Iterator[None]:
    """A value that cannot be one."""
    stage.agent.configure({"df_metadata": {"hold_timeout": "soon"}})
    yield
    stage.agent.configure({"df_metadata": {"hold_timeout": None}})


def _with_guest(name: str) -> Breakage:
    """A host in order, with one guest more."""

    @contextmanager
    def breakage(stage: Stage) -> Iterator[None]:
        stage.guest(name)
        yield

    return breakage


@contextmanager
def not_ready(stage: Stage) -> Iterator[None]:
    """OVSDB is away."""
    stage.host.stop("ovsdb-server")
    wait_for(lambda: not stage.agent.ready(), "the daemon to notice")
    yield
    stage.host.start("ovsdb-server")
    wait_for(stage.agent.ready, "the daemon to be ready again")


@contextmanager
def push_refused(stage: Stage) -> Iterator[None]:
    """A push where tokens are asked for; TOKEN is one that may read alone."""
    tokens = stage.agent.folder / "tokens"
    stage.names["TOKEN"] = token = new_token()
    tokens.unlink(missing_ok=True)
    add(tokens, Grant(scopes=("read",), created=datetime(2026, 1, 1, tzinfo=UTC)), token)
    stage.reload({"store": {"token_file": tokens}})
    stage.guest("pushed")
    yield
    stage.reload({"store": {"token_file": None}})


@contextmanager
def push_large(stage: Stage) -> Iterator[None]:
    """A push above max_body."""
    stage.guest("pushed")
    (stage.agent.folder / "user-data").write_bytes(bytes(8192))
    stage.names["FILE"] = str(stage.agent.folder / "user-data")
    yield


@contextmanager
def nova_secret(stage: Stage) -> Iterator[None]:
    """Nova has another secret."""
    nova, guest = _guest_of_nova(stage, "signed")
    stage.reload({"DEFAULT": {"metadata_proxy_shared_secret": "another"}})
    assert guest.curl(META_DATA).status == 403
    yield
    stage.reload({"DEFAULT": {"metadata_proxy_shared_secret": nova.secret}})
    assert guest.curl(META_DATA).status == 200


@contextmanager
def secret_not_reloaded(stage: Stage) -> Iterator[None]:
    """The secret is right in the file, and the daemon has the wrong one that was there before."""
    nova, guest = _guest_of_nova(stage, "late")
    stage.names["FILE"] = str(stage.agent.config_file)
    stage.reload({"DEFAULT": {"metadata_proxy_shared_secret": "mistyped"}})
    stage.agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": nova.secret}})
    assert guest.curl(META_DATA).status == 403
    yield
    stage.reload({})
    assert guest.curl(META_DATA).status == 200


@contextmanager
def nova_project(stage: Stage) -> Iterator[None]:
    """The project is another than the instance's."""
    _, guest = _guest_of_nova(stage, "moved")
    guest.set_external_ids(project_id="0" * 32)
    wait_for(lambda: guest.curl(META_DATA).status == 404, "Nova to refuse the project")
    yield


@contextmanager
def _impatient(stage: Stage) -> Iterator[None]:
    """Requests wait for a moment alone."""
    stage.reload({"df_metadata": {"hold_timeout": 0.4}})
    yield
    stage.reload({"df_metadata": {"hold_timeout": None}})


@contextmanager
def nova_away(stage: Stage) -> Iterator[None]:
    """Nova does not listen."""
    nova, guest = _guest_of_nova(stage, "left")
    with _impatient(stage):
        nova.away()
        assert guest.curl("/latest/meta-data/").status == 503
        yield
        nova.mend()


@contextmanager
def no_project(stage: Stage) -> Iterator[None]:
    """A port without a project."""
    guest = stage.guest("stranger")
    with _impatient(stage):
        assert guest.curl("/latest/meta-data/").status == 503
        count = "dfmeta_ports"
        wait_for(lambda: stage.agent.metric(count, state="no project"), "the review of the ports")
        yield


def _guest_of_nova(stage: Stage, name: str) -> tuple[RecordingNova, Guest]:
    """Nova, and a guest of its with a project."""
    assert stage.nova is not None
    guest = stage.guest(name, ids=project_ids(name))
    put_nova(stage.nova, guest)
    return stage.nova, guest


def _answering(stage: Stage, answer: bytes) -> OtherStore:
    """A server on 127.0.0.1:8099 of the host; with no answer it leaves its clients waiting."""
    server = OtherStore(namespace=stage.host.namespace, port=8099)
    server.answer = lambda _request: Last(answer) if answer else server.trickle(b"", b"")
    return server


OF_STORE: Mapping[str, Breakage] = {
    "no-instance": no_instance,
    "foreign-flow": foreign_flow,
    "cut-off": cut_off,
    "tap-cut-off": tap_cut_off,
    "no-connection": no_connection,
    "host-drops": host_drops,
    "not-a-guests-port": refused,
    "daemon-away": daemon_away,
    "many-connections": many_connections,
    "dead-port": no_route,
    "no-record": _answered("unknown", 404),
    "no-such-part": _answered("bare", 404, "/latest/user-data", userdata=None),
    "forwarded": _answered("proxied", 403, "/", "-H", "X-Forwarded-For: 10.0.0.7"),
    "no-token": _answered("tokenless", 401, http_tokens="required"),
    "malformed": _answered("strange", 400, "/", "--request-target", f"http://{METADATA_IP}/"),
    "too-often": too_often,
    "upstream-away": upstream_away,
    "closed": closed,
    "upstream-nonsense": nonsense,
    "look-up": looked_up,
    "slow-backend": slow,
    "another-instance": another,
    "no-user-data": _answered("idle", 404, "/openstack/latest/user_data", userdata=None),
    "no-key": no_key,
    "password-set": password_set,
    "flows-gone": flows_gone,
    "wrong-option": wrong_option,
    "runs-already": _with_guest("any"),
    "not-ready": not_ready,
    "push-401": push_refused,
    "push-403": push_refused,
    "push-400": _with_guest("pushed"),
    "push-413": push_large,
}
"""Name of the block on the page → what breaks a host with a store so."""
OF_NOVA: Mapping[str, Breakage] = {
    "nova-secret": nova_secret,
    "secret-not-reloaded": secret_not_reloaded,
    "nova-project": nova_project,
    "nova-away": nova_away,
    "no-project": no_project,
}
"""The same of a host with Nova."""
