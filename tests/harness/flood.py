"""``flood.py DEVICE RATE SECONDS LENGTH``: sends the frames on stdin, of LENGTH each, in turn.

It lasts SECONDS, or until SIGTERM and the frames of one second. The program prints the number of
sent frames. It uses a raw socket and the standard library.
"""

import signal
import socket
import sys
import threading
import time

BURSTS = 500
"""Bursts of frames in a second."""


def main() -> None:
    """Send the flood."""
    device, *numbers = sys.argv[1:]
    rate, seconds, length = map(int, numbers)
    frames = sys.stdin.buffer.read()
    ready = [frames[start : start + length] for start in range(0, len(frames), length)]
    per_burst, sent = max(1, rate // BURSTS), 0
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind((device, 0))
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        began = due = time.monotonic()
        while due - began < seconds and not (enough.is_set() and sent >= rate):
            for _ in range(per_burst):
                try:
                    link.send(ready[sent % len(ready)])
                    sent += 1
                except OSError:  # the device's queue is full
                    break
            due += 1 / BURSTS
            time.sleep(max(0.0, due - time.monotonic()))
    sys.stdout.write(f"{sent}\n")


if __name__ == "__main__":
    main()
