"""What a model that asks another one needs to know about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from whyloop.loop.world import Model
from whyloop.values.model import Delta, ModelRequest, ModelResponse


@asynccontextmanager
async def asked(model: Model, request: ModelRequest) -> AsyncIterator[AsyncIterator[Delta | ModelResponse]]:
    """The model's answer; whoever leaves before its end leaves no connection behind."""
    answer = model.respond(request)
    try:
        yield answer
    finally:
        # Most models are generators, but a model is anything that can be iterated over.
        close: Any = getattr(answer, "aclose", None)
        if close is not None:
            await close()


def name_of(model: object) -> str:
    """The name of a model for a person."""
    return str(getattr(model, "name", type(model).__name__))


def secrets_of(model: object) -> tuple[str, ...]:
    """What must never be kept of a model's traffic."""
    return tuple(getattr(model, "secrets", ()))
