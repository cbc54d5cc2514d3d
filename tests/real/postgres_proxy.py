"""A network between a store and its server that can be made to lose things."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self

READY = b"Z\x00\x00\x00\x05I"


class Lost(Enum):
    QUESTION = "what the store sends never arrives"
    ANSWER = "the server has done it, and its answer never arrives"


class Proxy:
    """Passes bytes on to a port of this machine, until it is told to cut a connection.

    Like a pooler, it can name another process to its clients than the one that serves them.
    """

    def __init__(self, port: int, *, pooler: bool = False) -> None:
        self._target = port
        self._pooler = pooler
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.cut: Lost | None = None
        self.after = 0
        """How many more messages pass before the cut."""
        self.cuts = 0

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._serving.values():
            writer.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        answers = asyncio.create_task(_pass_on(back, writer, self._pooler))
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.cut is not None and self.after:
                    self.after -= 1
                elif self.cut is not None:
                    how, self.cut = self.cut, None
                    self.cuts += 1
                    await _cancelled(answers)
                    if how is Lost.ANSWER:
                        forth.write(data)
                        await back.readuntil(READY)
                    break
                forth.write(data)
        await _cancelled(answers)
        for end in (writer, forth):
            end.close()
            with suppress(OSError):
                await end.wait_closed()
        del self._serving[task]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pooler: bool) -> None:
    while data := await reader.read(1 << 16):
        start = data.find(b"K\x00\x00\x00\x0c") + 5
        if pooler and start > 4:
            data, pooler = data[:start] + b"\x00\x01\x02\x03" + data[start + 4 :], False
        writer.write(data)
    writer.close()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
