"""Filters of sockets: the kernel drops what a program of classic BPF does not let pass.

A program is a sequence of instructions, as struct sock_filter of linux/filter.h has them. It loads
one number of the message after the other, compares it, and ends with :data:`PASS` or :data:`DROP`.
The kernel drops a message that is shorter than a load needs.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Sequence
from typing import Any, Final

SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27
"""asm-generic/socket.h; Python has no constants for them."""
Instruction = tuple[int, int, int, int]
"""Code, instructions to pass over if a comparison holds, or does not, and operand."""
PASS: Final[Instruction] = (0x06, 0, 0, 0xFFFFFFFF)
DROP: Final[Instruction] = (0x06, 0, 0, 0)
_JUMP_IF_EQUAL = 0x15
_LOADS = {4: 0x20, 2: 0x28, 1: 0x30}
"""Bytes → code, for a number at a fixed offset."""

_BPF = struct.Struct("=HBBI")
_FPROG = struct.Struct("@HP")
"""struct sock_filter and struct sock_fprog of linux/filter.h."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def load(size: int, offset: int) -> Instruction:
    """Return the instruction that loads the number of *size* bytes at *offset*.

    The number is in network byte order.
    """
    return _LOADS[size], 0, 0, offset


def when(values: Collection[int], block: Sequence[Instruction]) -> list[Instruction]:
    """Return instructions that go through *block* if the loaded number is one of *values*.

    Otherwise they pass over it.

    :param block: a program, which ends with :data:`PASS` or :data:`DROP`.
    """
    comparisons = [
        (_JUMP_IF_EQUAL, left, 0 if left else len(block), value)
        for left, value in zip(reversed(range(len(values))), values, strict=True)
    ]
    return [*comparisons, *block]


def attach(sock: Any, program: Sequence[Instruction]) -> None:
    """Give *sock* a filter (socket(7), SO_ATTACH_FILTER) in place of the one that it has.

    :raises OSError: when the kernel refuses.
    """
    code = b"".join(_BPF.pack(*instruction) for instruction in program)
    room = ctypes.create_string_buffer(code, len(code))
    whole = _FPROG.pack(len(program), ctypes.addressof(room))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, whole)


def attached(sock: Any) -> bool:
    """Return whether *sock* has a filter.

    :raises OSError: when the kernel refuses.
    """
    length = ctypes.c_uint32(0)
    # Without a buffer, the kernel returns the number of instructions (SO_GET_FILTER).
    if _LIBC.getsockopt(
        sock.fileno(), socket.SOL_SOCKET, SO_ATTACH_FILTER, None, ctypes.byref(length)
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return length.value > 0


def detach(sock: Any) -> None:
    """Remove the filter of *sock*.

    :raises OSError: when the kernel refuses, or there is no filter.
    """
    sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
