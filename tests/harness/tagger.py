"""``tagger.py TRUNK VID DEVICE``: connect DEVICE to the VLAN VID of TRUNK, as a VLAN device does.

Frames of DEVICE leave at TRUNK with an 802.1Q tag, and frames with that tag arrive at DEVICE
without it. The kernels of test machines have no VLAN devices. The program writes "begun" when it is
under way. It uses two raw sockets and the standard library.
"""

import contextlib
import select
import socket
import struct
import sys

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_OUTGOING = 4
TP_STATUS_VLAN_VALID = 1 << 4
SO_RCVBUFFORCE = 33
TAG = 0x8100
VID_MASK = 0x0FFF


def link(device: str) -> socket.socket:
    """Return a raw socket for all frames of *device*, with their tags beside them (packet(7))."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
    sock.bind((device, ETH_P_ALL))
    return sock


def arrived(sock: socket.socket) -> tuple[bytes, int]:
    """Return the next frame and the VLAN id of its outermost tag, which the kernel has taken off.

    The VLAN id is 0 for a frame without a tag, and the frame is empty if the host itself sent it.
    """
    frame, extras, _, sender = sock.recvmsg(65536, 256)
    if sender[2] == PACKET_OUTGOING:
        return b"", 0
    extra = next(data for level, kind, data in extras if (level, kind) == (SOL_PACKET, 8))
    status, _length, _kept, _mac, _net, tci, _tpid = struct.unpack_from("IIIHHHH", extra)
    return frame, tci & VID_MASK if status & TP_STATUS_VLAN_VALID else 0


def main() -> None:
    """Relay until the process is killed."""
    trunk, vid, device = link(sys.argv[1]), int(sys.argv[2]), link(sys.argv[3])
    tag = struct.pack("!HH", TAG, vid)
    poller = select.poll()
    for sock in (trunk, device):
        poller.register(sock, select.POLLIN)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        for number, _events in poller.poll():
            # A device that is down refuses frames, as a VLAN device would.
            with contextlib.suppress(OSError):
                if number == device.fileno():
                    frame, inner = arrived(device)
                    # A tag of the guest's own stays, inside.
                    own = struct.pack("!HH", TAG, inner) if inner else b""
                    if frame:
                        trunk.send(frame[:12] + tag + own + frame[12:])
                else:
                    frame, outer = arrived(trunk)
                    if frame and outer == vid:
                        device.send(frame)


if __name__ == "__main__":
    main()
