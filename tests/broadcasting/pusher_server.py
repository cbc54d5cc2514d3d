"""A server that answers as Reverb does, or as soketi does, on command with faults."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

APP_ID, KEY, SECRET = "app-1", "key-1", "the-very-secret-secret"


class PusherServer:
    """Checks what it is sent like the real ones, and keeps what it takes."""

    def __init__(self, dialect: str = "reverb", *, limit: int = 10_000, secret: str = SECRET) -> None:
        self.dialect = dialect
        self.limit = limit
        self.secret = secret
        self.answers = 1_000_000
        self.go_on = asyncio.Event()
        self.faults: list[web.Response] = []
        self.sizes: list[int] = []
        self.requests = 0
        self.received: list[tuple[str, str, str]] = []
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._server = TestServer(app)

    async def __aenter__(self) -> PusherServer:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def envelopes(self) -> list[dict[str, Any]]:
        return [json.loads(data) for _, _, data in self.received]

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()
        self.sizes.append(len(body))
        if self.requests > self.answers:
            await self.go_on.wait()
        if self.faults:
            return self.faults.pop(0)
        if request.path != f"/apps/{APP_ID}/batch_events":
            return self._no(404, f"No matching application for ID [{request.path}].")
        if not self._is_signed(request, body):
            return self._no(401, "Authentication signature invalid.")
        if len(body) > self.limit:
            return self._no(413, "Payload too large.")
        batch = json.loads(body)["batch"]
        if any(not isinstance(each["data"], str) or "unwanted" in each["data"] for each in batch):
            return self._no(422, "The data field must be a string.")
        self.received += [(each["channel"], each["name"], each["data"]) for each in batch]
        return web.json_response({"batch": {}} if self.dialect == "reverb" else {"ok": True})

    def _no(self, status: int, words: str) -> web.Response:
        if self.dialect == "soketi":
            return web.json_response({"error": words, "code": status})
        return web.Response(status=status, text=words)

    def _is_signed(self, request: web.Request, body: bytes) -> bool:
        fields = dict(request.query)
        told = fields.pop("auth_signature", "")
        if fields.get("body_md5") != (hashlib.md5(body).hexdigest() if body else None):
            return False
        written = "&".join(f"{name}={fields[name]}" for name in sorted(fields))
        text = f"{request.method}\n{request.path}\n{written}"
        return told == hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
