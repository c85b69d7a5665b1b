"""Which TCP sockets listen, asked of the kernel without a walk over every connection.

`/proc/net/tcp` walks the table of all connections, which takes a large host tens of
milliseconds a time; the kernel's socket diagnostics answer for listeners alone.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_LISTEN = 10
_TCP = socket.IPPROTO_TCP
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI48x")
_FOUND = struct.Struct("!4xHH16s")
"""After the family, state, timer and retransmissions: both ports, the own address."""
_INODE_AT = 68
_BUFFER_BYTES = 65536

_HERE = frozenset(
    {
        IPv4Address("0.0.0.0").packed,
        IPv4Address("127.0.0.1").packed,
        IPv6Address("::").packed,
        IPv6Address("::ffff:127.0.0.1").packed,
    }
)
"""Addresses that take connections to 127.0.0.1."""


def listening(port: int) -> Iterator[int]:
    """Yield the inode of every socket that listens for 127.0.0.1 on a port."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found = list(_asked(family))
        except OSError:
            # a kernel without the diagnostics, or one that does not let us ask
            found = list(_read(family))
        for own_port, address, inode in found:
            if own_port == port and address in _HERE:
                yield inode


def _asked(family: int) -> Iterator[tuple[int, bytes, int]]:
    """Ask the kernel for its listeners: port, address, inode. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        asked = _ASKED.pack(family, _TCP, 0, 1 << _LISTEN)
        size = _HEAD.size + len(asked)
        kernel.sendall(_HEAD.pack(size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + asked)
        while True:
            got = kernel.recv(_BUFFER_BYTES)
            at = 0
            while at + _HEAD.size <= len(got):
                length, kind, *_ = _HEAD.unpack_from(got, at)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < _HEAD.size:
                    raise OSError("no socket diagnostics")
                yield _one(family, got[at + _HEAD.size : at + length])
                # messages are aligned to four bytes
                at += (length + 3) & ~3


def _one(family: int, body: bytes) -> tuple[int, bytes, int]:
    port, _, address = _FOUND.unpack_from(body)
    (inode,) = struct.unpack_from("=I", body, _INODE_AT)
    return port, address if family == socket.AF_INET6 else address[:4], inode


def _read(family: int) -> Iterator[tuple[int, bytes, int]]:
    """Read the same from the table of all connections."""
    name = "tcp6" if family == socket.AF_INET6 else "tcp"
    lines: list[str] = []
    # a kernel without IPv6; what cannot be read otherwise is not as good as nobody
    with contextlib.suppress(FileNotFoundError):
        lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    for line in lines:
        words = line.split()
        if int(words[3], 16) == _LISTEN:
            address, _, port = words[1].partition(":")
            yield int(port, 16), _address(address), int(words[9])


def _address(text: str) -> bytes:
    # four bytes at a time, each as a number of this machine's byte order
    numbers = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return b"".join(struct.pack("=I", number) for number in numbers)
