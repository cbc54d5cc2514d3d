"""No test reaches beyond this machine."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from tests.support import NetworkBlockedError


def test_an_address_elsewhere_cannot_be_connected_to() -> None:
    with socket.socket() as connection, pytest.raises(NetworkBlockedError, match=r"192\.0\.2\.1"):
        connection.connect(("192.0.2.1", 80))


def test_a_name_elsewhere_is_not_even_looked_up() -> None:
    with pytest.raises(NetworkBlockedError, match=r"example\.com"):
        socket.getaddrinfo("example.com", 443)
    with pytest.raises((NetworkBlockedError, urllib.error.URLError)):
        urllib.request.urlopen("http://example.com", timeout=1)


def test_this_machine_can_be_connected_to() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
        server.accept()[0] as accepted,
    ):
        connection.sendall(b"hello")
        assert accepted.recv(5) == b"hello"
