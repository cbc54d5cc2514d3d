"""A real server that speaks the Pusher protocol, as Laravel Reverb does, on this machine only."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.real.node_packages import install

APP_ID, KEY, SECRET = "app-1", "key-1", "a-secret-for-tests"
MODULES = Path(sys.prefix) / "node" / "soketi" / "node_modules"
STARTING_SECONDS = 30


class NoSoketiError(Exception):
    """The server cannot be had here; says what is missing."""


class Soketi:
    """A server on free ports of 127.0.0.1, stopped by its own process id."""

    def __init__(self) -> None:
        install(Path(__file__).parent / "soketi")
        self._folder = Path(tempfile.mkdtemp(prefix="whyloop-soketi-"))
        self._log = self._folder / "log"
        self.ports = self.port, metrics, cluster = free_ports(3)
        here = "127.0.0.1"
        app = {"id": APP_ID, "key": KEY, "secret": SECRET, "enabled": True}
        config = {
            "host": here,
            "port": self.port,
            "appManager.array.apps": [app],
            "metrics": {"enabled": False, "host": here, "port": metrics},
            "cluster": {
                "hostname": here,
                "address": here,
                "unicast": here,
                "broadcast": "127.255.255.255",
                "port": cluster,
            },
        }
        self._config = self._folder / "config.json"
        self._config.write_text(json.dumps(config), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with self._log.open("ab") as log:
            command = ["node", str(MODULES / "@soketi/soketi/bin/server.js"), "start"]
            self._process = subprocess.Popen(
                [*command, f"--config={self._config}"], stdout=log, stderr=log, cwd=self._folder
            )
        deadline = time.monotonic() + STARTING_SECONDS
        while not self._takes_connections():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise NoSoketiError(f"soketi does not start here: {self._log.read_text()[-500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STARTING_SECONDS)
            self._process = None

    def remove(self) -> None:
        """Stop it, and leave nothing behind."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _takes_connections(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
