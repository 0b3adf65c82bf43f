"""Commands on a real terminal of a given width."""

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
    """A command's exit status, and its output on the terminal."""

    status: int
    text: str


def on_terminal(command: Sequence[str], *, columns: int, typed: str = "") -> Shown:
    """Run a command with a terminal of *columns* as its stdin, stdout and stderr, without colours.

    :param typed: input that is typed at the start; the terminal does not echo it.
    """
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    settings = termios.tcgetattr(terminal)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    env = {"COLUMNS": "", "TERM": "dumb"}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, **env}
    )
    os.close(terminal)
    try:
        os.write(main, typed.encode())
        text = _read(main)
        return Shown(process.wait(), text)
    finally:
        process.kill()
        process.wait()
        os.close(main)


def _read(main: int) -> str:
    """Read until the last process has closed the terminal."""
    content = b""
    while True:
        try:
            content += os.read(main, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return content.decode().replace("\r\n", "\n")
