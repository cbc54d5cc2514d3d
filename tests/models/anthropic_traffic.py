"""Answers of Anthropic's messages written by hand, complete and streamed."""

from __future__ import annotations

import json
from typing import Any

from tests.models.recorded import message_of, streamed
from whyloop.models.anthropic import AnthropicMessages
from whyloop.models.provider import Settings
from whyloop.values.model import ModelRequest, ModelResponse

Block = dict[str, Any]

THOUGHT = {"type": "thinking", "thinking": "Hm, é.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "eHl6"}
SERVER = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "X"}]}
CITED = {"type": "text", "text": "Cited.", "citations": [{"cited_text": "x", "encrypted_index": "i"}]}
CALL: Block = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "caf\u00e9", "n": [1, {}]}}
ROW: list[Block] = [
    THOUGHT,
    {"type": "text", "text": "Let me see. "},
    SERVER,
    FOUND,
    CITED,
    HIDDEN,
    CALL,
    {"type": "text", "text": "And \U0001f680."},
    {**CALL, "id": "t2", "caller": {"type": "code_execution_20250825", "tool_id": "s1"}},
]


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def document(*blocks: Block, word: str | None = "end_turn", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"type": "message", "id": "msg_1", "model": "claude", "role": "assistant", "usage": usage}
    return {**message, "content": list(blocks), "stop_reason": word, **fields}


def decoded(*blocks: Block, **fields: Any) -> ModelResponse:
    return AnthropicMessages().decode(json.dumps(document(*blocks, **fields)).encode())


def pieces_of(block: Block) -> tuple[Block, list[Block]]:
    """The start of a block, and its deltas, two characters each."""

    def cut(kind: str, key: str, whole: str) -> list[Block]:
        return [{"type": kind, key: whole[at : at + 2]} for at in range(0, len(whole), 2)]

    if block["type"] == "text":
        cited = [{"type": "citations_delta", "citation": item} for item in block.get("citations", ())]
        return {**block, "text": "", **({"citations": []} if cited else {})}, [
            *cited,
            *cut("text_delta", "text", block["text"]),
        ]
    if block["type"] == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [
            *cut("thinking_delta", "thinking", block["thinking"]),
            signed,
        ]
    if "input" in block:
        return {**block, "input": {}}, cut("input_json_delta", "partial_json", json.dumps(block["input"]))
    return block, []


def events(*blocks: Block, word: str | None = "end_turn", **fields: Any) -> list[Block]:
    start = {**document(), "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    row: list[Block] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        first, deltas = pieces_of(block)
        row.append({"type": "content_block_start", "index": index, "content_block": first})
        row += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        row.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": word, **fields}
    row.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}})
    return [*row, {"type": "message_stop"}]


def stream(row: list[Block]) -> bytes:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in row]
    return "".join(lines).encode()


def read(row: list[Block]) -> tuple[ModelResponse, str]:
    return streamed(AnthropicMessages().reader(), [stream(row)])


def sent_back(response: ModelResponse) -> list[Block]:
    body = AnthropicMessages().encode(ModelRequest([message_of(response)]), Settings(model="claude"))
    blocks: list[Block] = json.loads(body)["messages"][0]["content"]
    return blocks
