"""Sends what nobody asked for, as fast as it is let, until it is killed.

usage: flooder.py resolve SOCKET     messages of Cap'n Proto's RPC that resolve capabilities nobody has
       flooder.py http PORT COUNT    requests on so many connections, without waiting for answers
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import time


def _pointer(data_words: int, pointers: int) -> bytes:
    """To the struct that follows at once."""
    return struct.pack("<iHH", 0, data_words, pointers)


def resolve_message() -> bytes:
    """One of 80 bytes: rpc.capnp's Message with a Resolve of promise 77 to an exception."""
    words = (
        _pointer(1, 1)  # Message
        + struct.pack("<HHI", 5, 0, 0)  # which: resolve
        + _pointer(1, 1)  # Resolve
        + struct.pack("<IHH", 77, 1, 0)  # promiseId, which: exception
        + _pointer(1, 1)  # Exception
        + struct.pack("<Q", 0)  # failed, without a reason
    )
    words = words.ljust(72, b"\0")
    return struct.pack("<II", 0, len(words) // 8) + words


def flood_socket(path: str) -> None:
    data = resolve_message() * 512
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            while True:
                line.sendall(data)


def flood_http(port: int, count: int) -> None:
    data = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 64
    lines: list[socket.socket] = []
    while True:
        while len(lines) < count:
            line = socket.create_connection(("127.0.0.1", port))
            line.setblocking(False)
            lines.append(line)
        readable, writable, _ = select.select(lines, lines, [])
        for line in {*readable, *writable}:
            try:
                if line in readable and not line.recv(1 << 16):
                    raise ConnectionError
                if line in writable:
                    line.send(data)
            except BlockingIOError:
                pass
            except OSError:
                line.close()
                lines.remove(line)
                time.sleep(0.001)


def main() -> None:
    if sys.argv[1] == "resolve":
        flood_socket(sys.argv[2])
    else:
        flood_http(int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
