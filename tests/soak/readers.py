"""Clients that read streams and keep nothing, in a process of their own, so the server keeps its time.

python -m tests.soak.readers PORT STREAMS SESSIONS
"""

from __future__ import annotations

import selectors
import socket
import sys

ASK = "GET /sessions/s{}/events HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n\r\n"


def read_streams(port: int, streams: int, sessions: int) -> None:
    """Follow so many sessions by so many streams until the standard input ends."""
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    for number in range(streams):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.sendall(ASK.format(number % sessions, f"127.0.0.1:{port}").encode())
        head = stream.recv(4096)
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"the server refused a stream: {head!r}")
        waiting.register(stream, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if not isinstance(key.fileobj, socket.socket):
                return
            if not key.fileobj.recv(2**16):
                waiting.unregister(key.fileobj)


if __name__ == "__main__":
    read_streams(*map(int, sys.argv[1:]))
