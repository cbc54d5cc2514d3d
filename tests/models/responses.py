"""Items, documents and bodies of OpenAI's responses, written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.models.recorded import message_of
from whyloop.models.openai_responses import OpenAIResponses
from whyloop.models.provider import Settings
from whyloop.values.messages import Message
from whyloop.values.model import ModelRequest, ModelResponse

Json = dict[str, Any]

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}


def said(*texts: str, **fields: Any) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "status": "completed", "content": parts, **fields}


def called(name: str = "weather", arguments: Any = '{"city":"Rome"}', **fields: Any) -> Json:
    item = {"type": "function_call", "call_id": "call_1", "name": name, "arguments": arguments}
    return {**item, "status": "completed", **fields}


def document(*items: Json, **fields: Any) -> Json:
    return {"id": "resp_1", "model": "gpt-5", "status": "completed", "output": list(items), **fields}


def decoded(*items: Json, **fields: Any) -> ModelResponse:
    return OpenAIResponses().decode(json.dumps(document(*items, **fields)).encode())


def body(*messages: Message, model: str = "gpt-5", **options: Any) -> Json:
    request = {name: options.pop(name) for name in ("tools", "instructions") if name in options}
    settings = Settings(model=model, **options)
    sent: Json = json.loads(OpenAIResponses().encode(ModelRequest(messages, **request), settings))
    return sent


def sent_back(*items: Json, model: str = "gpt-5", quirks: Iterable[str] = (), **fields: Any) -> list[Json]:
    message = message_of(decoded(*items, **fields))
    sent: list[Json] = body(message, model=model, quirks=frozenset(quirks))["input"]
    return sent
