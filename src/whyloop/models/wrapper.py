"""Helpers of models that wrap other models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from whyloop.loop.world import Model
from whyloop.values.model import Delta, ModelRequest, ModelResponse


@asynccontextmanager
async def answer_of(
    model: Model, request: ModelRequest
) -> AsyncIterator[AsyncIterator[Delta | ModelResponse]]:
    """Ask a model; its connection is closed also if its answer is not read to the end."""
    answer = model.respond(request)
    try:
        yield answer
    finally:
        # Most models are generators, but a model may return any asynchronous iterator.
        close: Any = getattr(answer, "aclose", None)
        if close is not None:
            await close()


def name_of(model: object) -> str:
    """Return the name of a model for a person."""
    return str(getattr(model, "name", type(model).__name__))


def secrets_of(model: object) -> tuple[str, ...]:
    """Return the secrets of a model, which must never be kept with its traffic."""
    return tuple(getattr(model, "secrets", ()))
