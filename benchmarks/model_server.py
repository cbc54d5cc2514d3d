"""A chat completions server that answers at once: run as a process of its own, it prints its port."""

from __future__ import annotations

import json

from aiohttp import web

CHUNKS = 200
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
USAGE = {"prompt_tokens": 10, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 10}
ANSWER = json.dumps(
    {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    }
).encode()


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**HEAD, "choices": [choice]}).encode() + b"\n\n"


CHUNK_EVENTS = [_event({"content": f"word{number} "}) for number in range(CHUNKS)]
LAST_EVENTS = [
    _event({}, "stop"),
    b"data: " + json.dumps({**HEAD, "choices": [], "usage": USAGE}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]


async def answer(request: web.Request) -> web.StreamResponse:
    """The whole answer, or each chunk in a write of its own."""
    body = json.loads(await request.read())
    if not body.get("stream"):
        return web.Response(body=ANSWER, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in (*CHUNK_EVENTS, *LAST_EVENTS):
        await response.write(event)
    await response.write_eof()
    return response


async def serve() -> None:
    """Serve until the process is ended."""
    import asyncio

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import asyncio

    asyncio.run(serve())
