"""The yardstick: a loop written by hand for the same work, with plain dicts and without a trace.

It streams from a model, decodes and checks arguments, times every tool, counts tokens, seconds and
failures, minds the same limits and tells a listener the same six things a step. What it cannot do
is say why it went on or why it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

Event = dict[str, Any]
TERMINAL = ("length", "content_filter")


class BareModel:
    """Asks for the same tool at every step but the last, then answers; replies are plain dicts."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.requests: list[dict[str, Any]] = []

    async def respond(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.requests.append(request)
        number = len(self.requests)
        usage = {"input": 90, "output": 10}
        if number == self.steps:
            yield {"type": "delta", "text": "done"}
            yield {
                "type": "response",
                "text": "done",
                "tool_calls": [],
                "finish_reason": "stop",
                "usage": usage,
            }
            return
        wanted = {"id": f"call_{number}", "name": "lookup", "arguments": '{"key": "alpha", "limit": 3}'}
        yield {
            "type": "response",
            "text": "",
            "tool_calls": [wanted],
            "finish_reason": "tool_calls",
            "usage": usage,
        }


def check(arguments: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit a flat schema."""
    if not isinstance(arguments, dict):
        raise TypeError("the arguments are no object")
    for name, (kind, required) in schema.items():
        if name not in arguments:
            if required:
                raise TypeError(f"{name} is missing")
        elif not isinstance(arguments[name], kind):
            raise TypeError(f"{name} has the wrong type")
    for name in arguments:
        if name not in schema:
            raise TypeError(f"{name} is unknown")
    return arguments


async def bare_run(
    model: BareModel,
    tools: dict[str, Callable[..., Awaitable[Any]]],
    schemas: dict[str, dict[str, Any]],
    query: str,
    *,
    max_steps: int,
    max_tokens: int,
    timeout: float,  # noqa: ASYNC109
    listener: Callable[[Event], object],
) -> list[dict[str, Any]]:
    """Run to the end and return the messages."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": query}]
    specs = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    began = time.monotonic()
    steps = tokens = failures = 0
    while True:
        steps += 1
        failed = False
        listener(
            {"event": "step_started", "time": datetime.now(UTC), "step": steps, "messages": len(messages)}
        )
        started = time.monotonic()
        response: dict[str, Any] = {}
        async for item in model.respond({"messages": messages, "tools": specs}):
            if item["type"] == "delta":
                listener({"event": "chunk", "time": datetime.now(UTC), "step": steps, "text": item["text"]})
            else:
                response = item
        usage = response["usage"]
        tokens += usage["input"] + usage["output"]
        listener(
            {"event": "usage", "time": datetime.now(UTC), "step": steps, "usage": usage, "total": tokens}
        )
        wanted = response["tool_calls"]
        messages.append({"role": "assistant", "content": response["text"], "tool_calls": wanted})
        for call in wanted:
            call_id, name = call["id"], call["name"]
            listener({"event": "tool_started", "time": datetime.now(UTC), "step": steps, "id": call_id})
            tool_started = time.monotonic()
            try:
                arguments = check(json.loads(call["arguments"]), schemas[name])
                result = await tools[name](**arguments)
                text = result if isinstance(result, str) else json.dumps(result)
            except Exception as error:
                text, failed = f"Error: {error}", True
            took = time.monotonic() - tool_started
            messages.append({"role": "tool", "content": text, "tool_call_id": call_id, "tool_name": name})
            listener(
                {"event": "tool_done", "time": datetime.now(UTC), "step": steps, "id": call_id, "took": took}
            )
        failures = failures + 1 if failed else 0
        took = time.monotonic() - started
        listener(
            {"event": "step_done", "time": datetime.now(UTC), "step": steps, "took": took, "failed": failed}
        )
        if failures or steps >= max_steps or tokens >= max_tokens or time.monotonic() - began >= timeout:
            break
        if response["finish_reason"] in TERMINAL or not wanted:
            break
    return messages
