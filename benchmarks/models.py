"""What a model call costs beside the bare HTTP client: `make bench-models`.

A request, a request with a history of 200 messages, and a chunk of a stream of 200, as ratios in
one run; the openai package is measured too where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import msgspec

from benchmarks.model_server import CHUNKS
from whyloop.models import load
from whyloop.values.messages import Message
from whyloop.values.model import ModelRequest, ModelResponse

ROUNDS = 40
JSON = {"content-type": "application/json"}
HISTORY = [
    Message.user(f"question {n} " + "word " * 40) if n % 2 == 0 else Message.assistant("answer " * 40)
    for n in range(200)
]
PLAIN_HISTORY = [{"role": message.role.value, "content": message.text} for message in HISTORY]
Call = Callable[[], Awaitable[None]]


async def _bare(session: aiohttp.ClientSession, url: str, messages: list[Any], *, stream: bool) -> None:
    """The client alone: encode, send, read, decode; every event of a stream decoded, too."""
    payload = {"model": "bench", "messages": messages, "stream": stream}
    async with session.post(url, data=msgspec.json.encode(payload), headers=JSON) as response:
        if not stream:
            msgspec.json.decode(await response.read())
            return
        pieces = 0
        async for line in response.content:
            if line.startswith(b"data: {"):
                pieces += len(msgspec.json.decode(line[6:])["choices"])
        if pieces <= CHUNKS:
            raise RuntimeError(f"{pieces} pieces")


async def _ours(model: Any, messages: list[Message]) -> None:
    last = None
    async for item in model.respond(ModelRequest(messages)):
        last = item
    if not isinstance(last, ModelResponse):
        raise TypeError(last)


async def _openai(client: Any, messages: list[Any], *, stream: bool) -> None:
    response = await client.chat.completions.create(model="bench", messages=messages, stream=stream)
    if stream:
        async for _ in response:
            pass


async def measure(calls: dict[str, Call]) -> dict[str, float]:
    """Median milliseconds of each call; they take turns, so that they meet the same noise."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 3):
        for name, call in calls.items():
            started = time.perf_counter()
            await call()
            if number >= 3:
                times[name].append((time.perf_counter() - started) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def line(label: str, measured: dict[str, float], unit: str, divide: float, most: float, least: float) -> bool:
    """One line of the report; returns whether the targets were met."""
    bare, own = measured["bare"] / divide, measured["whyloop"] / divide
    words = f"  {label:<34} bare {bare:8.3f} {unit}   whyloop {own:8.3f} {unit}   {own / bare:5.2f} of {most}"
    met = own / bare <= most
    if "openai" in measured:
        faster = measured["openai"] / measured["whyloop"]
        words += f"   openai package {measured['openai'] / divide:8.3f} {unit}, {faster:.1f} times slower"
        met = met and faster >= least
    print(words, "" if met else "  MISSED", flush=True)
    return met


async def run(address: str) -> bool:
    """Measure all three, and say what was met."""
    url = f"{address}/v1/chat/completions"
    whole = load("openai:bench", base_url=f"{address}/v1", stream=False)
    streamed = load("openai:bench", base_url=f"{address}/v1")
    client: Any = None
    if importlib.util.find_spec("openai"):
        client = importlib.import_module("openai").AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
    met = []
    async with aiohttp.ClientSession() as session:
        for label, messages, plain, stream, divide, most, least in (
            ("a request", HISTORY[:1], PLAIN_HISTORY[:1], False, 1, 1.3, 0),
            ("a request, 200 messages", HISTORY, PLAIN_HISTORY, False, 1, 1.3, 10),
            ("a chunk of a stream of 200", HISTORY[:1], PLAIN_HISTORY[:1], True, CHUNKS, 1.5, 5),
        ):
            model = streamed if stream else whole
            calls: dict[str, Call] = {
                "bare": partial(_bare, session, url, plain, stream=stream),
                "whyloop": partial(_ours, model, messages),
            }
            if client is not None:
                calls["openai"] = partial(_openai, client, plain, stream=stream)
            measured = await measure(calls)
            met.append(line(label, measured, "ms", divide, most, least))
    return all(met)


def main() -> int:
    """Start the server as a process of its own and measure against it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.model_server"], stdout=subprocess.PIPE, text=True
    )
    try:
        port = server.stdout.readline().strip() if server.stdout else ""
        return 0 if asyncio.run(run(f"http://127.0.0.1:{port}")) else 1
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
