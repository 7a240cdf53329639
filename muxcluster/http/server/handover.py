"""Leaving a port to another process that listens there too, without refusing a connection.

A listening socket that is closed resets the connections that have come and are not accepted yet.
So it first takes no more: a filter drops the packets that open one (SYN), and the client's system
sends them again after a second, when they reach the other process.
"""

import contextlib
import ctypes
import socket
import struct
import sys

TAKEN_S = 0.2  # until then connections that have come are open and accepted
_SO_ATTACH_FILTER = 26  # Linux's, which the module `socket` does not name
_FLAGS, _SYN = 13, 0x02  # offset of the byte of flags in a TCP header; one of them
# Classic BPF of a TCP header, (code, jump if true, jump if false, operand) each: load the flags;
# without SYN take the packet, else drop it.
_DROP_SYN = (
    (0x30, 0, 0, _FLAGS),  # load byte
    (0x45, 0, 1, _SYN),  # jump if a bit is set
    (0x06, 0, 0, 0),  # return 0: drop
    (0x06, 0, 0, 0xFFFFFFFF),  # return: take all of it
)


def take_no_more(listening: socket.socket) -> None:
    """Let a listening socket open no more connections, where the system can; those that have come
    are accepted as before."""
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a number, and the address of the instructions, aligned as C does
    asked = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(instructions))
    with contextlib.suppress(OSError):  # not allowed here: some connections may be reset
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, asked)
