"""Record the path of one request; tools/life-of-a-request sets up the requirements and runs it.

A guest sends two requests. The output of the switch, tcpdump and the daemon is written to text
files that doc/source/life-of-a-request.rst includes. Values that differ between runs (times,
sequence numbers, transaction ids) are replaced, so that a file changes only if the behaviour has
changed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest, Ids
from tests.harness.netns import Namespace
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for

TARGET = Path(__file__).resolve().parents[1] / "doc" / "source" / "life-of-a-request"
TAP = "tap-metadata"
PROXY = 18080
PATH = "/latest/meta-data/hostname"
HOSTNAME = "web.example.org"
IDS = Ids(
    iface_id="aaaaaaaa-1111-4000-8000-000000000001",
    vm_uuid="aaaaaaaa-0000-4000-8000-000000000001",
)
KEY = "128.0.0.1"
"""Key of slot 0 of the guest's port, the first port of the bridge."""
FIRST, LATER, TRIED = 40001, 40002, 40003
"""Source ports of the two requests, and of packets that are only traced."""
WITHOUT_BARE_ACKS = "(arp or tcp[tcpflags] & (tcp-syn|tcp-fin|tcp-push|tcp-rst) != 0)"
"""tcpdump expression: the number of bare acknowledgements depends on milliseconds."""
_OPENFLOW = re.compile(r"^\S+\|\d+\|vconn\|DBG\|(unix#\d+): ", re.MULTILINE)
_BY_THE_WAY = ("OFPST_AGGREGATE", "OFPT_ECHO", "OFPST_FLOW")


class Capture:
    """tcpdump on a device; a context manager that ends it."""

    def __init__(self, namespace: Namespace, device: str, file: Path) -> None:
        self._file = file
        log = file.with_suffix(".log")
        command = ["tcpdump", "-i", device, "-U", "-Z", "root", "--immediate-mode", "-w", str(file)]
        with log.open("wb") as stderr:
            self._process: Popen[bytes] = namespace.spawn(command, stderr=stderr)
        wait_for(lambda: "listening on" in log.read_text(), f"tcpdump on {device}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        netns.end(self._process)

    def shown(self, expression: str) -> str:
        """Return tcpdump's output on the frames so far that match *expression*."""
        text = netns.run(["tcpdump", "-nnte", "-r", str(self._file), expression]).stdout
        return "".join(f"{_plain_segment(line)}\n" for line in text.splitlines())

    def wait_for_the_end_of(self, port: int) -> None:
        """Wait until both sides have closed the connection from source port *port*."""
        closing = f"tcp[tcpflags] & tcp-fin != 0 and port {port}"
        wait_for(lambda: self.shown(closing).count("\n") == 2, "the connection's end")


def _plain_segment(line: str) -> str:
    """Return *line* with names for a SYN's sequence numbers, without window and option values."""
    line = re.sub(r"(Flags \[S\], seq) \d+", r"\1 G", line)
    line = re.sub(r"(Flags \[S\.\], seq) \d+, ack \d+", r"\1 H, ack G+1", line)
    line = re.sub(r", win \d+", "", line)
    return re.sub(r"options \[[^]]*\]", "options [...]", line)


def conversation(log: str) -> str:
    """Return the OpenFlow messages from the packet-in to the packet-out.

    :param log: the log of ovs-vswitchd, with OpenFlow messages.
    """
    starts = [*_OPENFLOW.finditer(log)]
    ends = [match.start() for match in starts[1:]] + [len(log)]
    messages = [(match[1], log[match.end() : end]) for match, end in zip(starts, ends, strict=True)]
    message = next(connection for connection, text in messages if "OFPT_PACKET_IN" in text)
    kept = ""
    for connection, text in messages:
        if connection == message and not any(kind in text for kind in _BY_THE_WAY):
            # A log line that is not part of an OpenFlow message begins with the time.
            kept += re.split(r"^\d{4}-\d\d-\d\dT", text, flags=re.MULTILINE)[0]
    return _renumbered(kept)


def _renumbered(text: str) -> str:
    """Return *text* with transaction and bundle ids numbered from 1, in order of appearance."""
    for name in ("xid", "bundle_id"):
        numbers = dict.fromkeys(re.findall(rf"\b{name}=(0x\w+)", text))
        numbers.pop("0x0", None)
        for count, number in enumerate(numbers, 1):
            text = re.sub(rf"\b{name}={number}\b", f"{name}={count}", text)
    return re.sub(r"tcp_csum:\w+", "tcp_csum:...", text)


class Recorder:
    """Writes the files; each begins with the command whose output it has."""

    def __init__(self, folder: Path, host: OpenvSwitch, guest: Guest) -> None:
        self.folder = folder
        self._host = host
        self._guest = guest
        self._tap = host.ofport(TAP)
        self._tap_mac = host.vsctl("get", "Interface", TAP, "mac_in_use").strip().strip('"')

    def write(self, name: str, text: str, *, prompt: str = "") -> None:
        """Write the file *name*, with the lines of *prompt* and *text*."""
        start = f"{prompt}\n" if prompt else ""
        lines = [line.rstrip() for line in f"{start}{text}".strip("\n").splitlines()]
        (self.folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def flows(self, name: str) -> None:
        """Record the output of dump-flows."""
        command = ["--no-stats", "dump-flows", BRIDGE]
        lines = self._host.ofctl(*command).splitlines()
        flows = [line.strip() for line in lines if "actions=" in line]
        self.write(
            name, "\n".join(flows), prompt=f"host# ovs-ofctl -O OpenFlow13 {' '.join(command)}"
        )

    def trace(self, name: str, flow: str) -> None:
        """Record the output of ofproto/trace, without ids that depend on the process."""
        text = self._host.trace(flow)
        text = re.sub(r"\b(pid|recirc_id)=\d+(?=,controller|,rule)", r"\1=...", text)
        self.write(name, text, prompt=f"host# ovs-appctl ofproto/trace {BRIDGE} '{flow}'")

    def segment(self, port: int, flags: str, *, ip: str = "") -> str:
        """Return the flow of a TCP segment from the guest."""
        guest = self._guest
        return (
            f"in_port={guest.ofport},tcp,dl_src={guest.mac},dl_dst={self._tap_mac},"
            f"nw_src={ip or guest.ip},nw_dst={METADATA_IP},tcp_src={port},tcp_dst=80,"
            f"tcp_flags={flags}"
        )

    def answer(self, port: int) -> str:
        """Return the flow of a SYN-ACK from the proxy."""
        return (
            f"in_port={self._tap},tcp,dl_src={self._tap_mac},dl_dst={self._guest.mac},"
            f"nw_src={METADATA_IP},nw_dst={KEY},tcp_src={PROXY},tcp_dst={port},tcp_flags=syn|ack"
        )

    def question(self, asked: str, *, of_guest: bool) -> str:
        """Return the flow of an ARP request of the guest or of the host."""
        ofport, mac, ip = self._tap, self._tap_mac, METADATA_IP
        if of_guest:
            ofport, mac, ip = self._guest.ofport, self._guest.mac, self._guest.ip
        return (
            f"in_port={ofport},arp,dl_src={mac},dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1,"
            f"arp_sha={mac},arp_spa={ip},arp_tpa={asked}"
        )

    def elsewhere(self) -> Iterator[tuple[str, str]]:
        """Yield names and flows of packets that dfmeta drops or that are not for dfmeta."""
        unknown = "02:00:00:00:00:53"
        guest = self._guest
        to_ssh = (
            f"in_port={self._tap},tcp,dl_src={self._tap_mac},dl_dst={guest.mac},"
            f"nw_src={METADATA_IP},nw_dst={guest.ip},tcp_src={TRIED},tcp_dst=22,tcp_flags=syn"
        )
        to_dns = (
            f"in_port={guest.ofport},udp,dl_src={guest.mac},dl_dst={unknown},"
            f"nw_src={guest.ip},nw_dst={METADATA_IP},udp_src={TRIED},udp_dst=53"
        )
        yield "trace-unknown-connection", self.segment(TRIED, "ack", ip="10.0.0.6")
        yield "trace-host-to-guest", to_ssh
        yield "trace-dns", to_dns


def versions(host: OpenvSwitch) -> str:
    """Return the versions of the programs that the form of the output depends on."""
    switch = host.appctl("version").splitlines()[0]
    dump = netns.run(["tcpdump", "--version"]).stdout.splitlines()[0]
    return f"{switch}\n{dump}"


def ask(guest: Guest, port: int) -> str:
    """Send one request, and return curl's output."""
    reply = guest.curl(PATH, "--local-port", str(port), "-A", "curl")
    if reply.text != HOSTNAME:
        raise RuntimeError(f"the guest got {reply}")
    lines = [f"HTTP/1.1 {reply.status} OK"]
    lines += [f"{key}: {value}" for key, value in reply.headers if key != "Date"]
    return "\n".join([*lines, "", reply.text])


def first_request(recorder: Recorder, host: OpenvSwitch, guest: Guest) -> None:
    """Record the first request of an address, and the OpenFlow messages that it causes."""
    before = len(host.log("ovs-vswitchd"))
    host.appctl("vlog/set", "vconn:file:dbg")
    text = ask(guest, FIRST)
    recorder.write("curl", text, prompt=f"web$ curl -i -A curl http://{METADATA_IP}{PATH}")
    wait_for(lambda: "OFPT_PACKET_OUT" in host.log("ovs-vswitchd")[before:], "the packet-out")
    host.appctl("vlog/set", "vconn:file:info")
    recorder.write("openflow", conversation(host.log("ovs-vswitchd")[before:]))


def record(folder: Path, stack: ExitStack) -> None:
    """Record all files, in the order of the page."""
    host = stack.enter_context(OpenvSwitch())
    guest = stack.enter_context(Guest(host, "web", mac="fa:16:3e:00:00:05", ids=IDS))
    # IPv6 would add flows to each listing, and no other step to the path.
    agent = stack.enter_context(Agent(host, {"df_metadata": {"ip6": ""}})).start()
    agent.ctl("store", "put", guest.instance_id, "--hostname", HOSTNAME)
    work = netns.temporary_folder("life")
    stack.callback(shutil.rmtree, work, ignore_errors=True)
    sides = {
        "guest": stack.enter_context(Capture(guest.namespace, guest.device, work / "guest.pcap")),
        "tap": stack.enter_context(Capture(host.namespace, TAP, work / "tap.pcap")),
    }
    recorder = Recorder(folder, host, guest)
    recorder.write("versions", versions(host))
    recorder.flows("flows-before")
    recorder.trace("trace-arp-guest", recorder.question(METADATA_IP, of_guest=True))
    recorder.trace("trace-first-syn", recorder.segment(TRIED, "syn"))
    first_request(recorder, host, guest)
    ask(guest, LATER)
    for side, capture in sides.items():
        for name, port in (("first", FIRST), ("later", LATER)):
            capture.wait_for_the_end_of(port)
            wanted = f"{WITHOUT_BARE_ACKS} and (port {port}{' or arp' if port == FIRST else ''})"
            device = guest.device if side == "guest" else TAP
            prompt = f"{'web$' if side == 'guest' else 'host#'} tcpdump -nnte -i {device}"
            recorder.write(f"{side}-{name}", capture.shown(wanted), prompt=prompt)
    recorder.flows("flows-after")
    recorder.trace("trace-later-syn", recorder.segment(TRIED, "syn"))
    recorder.trace("trace-arp-host", recorder.question(KEY, of_guest=False))
    recorder.trace("trace-reply", recorder.answer(TRIED))
    for name, flow in recorder.elsewhere():
        recorder.trace(name, flow)
    counted = agent.metrics().items()
    lines = [f"{name} {value:g}" for name, value in counted if "packet_ins_total" in name]
    prompt = "host# curl -s http://127.0.0.1:9697/metrics | grep ^dfmeta_packet_ins_total"
    recorder.write("packet-ins", "\n".join(lines), prompt=prompt)


def main() -> int:
    """Write the files, and clean up in all cases."""
    parser = argparse.ArgumentParser(description="Record the path of one request.")
    parser.add_argument("--output", type=Path, default=TARGET, help="directory to write to")
    folder: Path = parser.parse_args().output
    with ExitStack() as stack:
        stack.callback(netns.remove_own)
        new = netns.temporary_folder("recorded")
        record(new, stack)
        # Replace all files or none: the files of a failed run would be inconsistent.
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.txt"):
            old.unlink()
        files = [shutil.copy(file, folder) for file in sorted(new.iterdir())]
        print(f"wrote {len(files)} files to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
