"""The OpenAPI document, generated from the operations and their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from inspect import cleandoc
from typing import Any
from urllib.parse import quote

import msgspec

from whyloop.server.bodies import EventPage, History, Refusal, Trace
from whyloop.server.operations import Operation
from whyloop.stores.records import LONGEST_ID, LONGEST_KEY

_REFERENCE = "#/components/schemas/"
_JSON = "application/json"
VERSION = "1"
_BEGUN_BY_WORKERS = ("send_message", "resume", "approve")


def document(operations: Iterable[Operation], root: str = "") -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server with these operations."""
    operations = tuple(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "whyloop",
            "version": VERSION,
            "description": "Sessions of agents: what they did, why they continued and why they stopped.",
        },
        "servers": [{"url": quote(root) or "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(operations)},
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        **({} if operation.right is None else {"description": f"Needs the right `{operation.right}`."}),
        "parameters": [*_in_path(operation), *_in_query(operation), *_in_header(operation)],
        "responses": {str(operation.status): _answer(operation), **_refusals(operation), **_none(operation)},
    }
    if operation.takes is not None:
        needed = any(field.required for field in msgspec.structs.fields(operation.takes))
        described["requestBody"] = {
            "required": needed,
            "content": {sent_as: {"schema": _reference(operation.takes)} for sent_as in _types(operation)},
        }
    return described


def _types(operation: Operation) -> tuple[str, ...]:
    return ("application/x-www-form-urlencoded", _JSON) if operation.is_form else (_JSON,)


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.streams is not None:
        schema = {"description": operation.streams}
        return {"description": "A stream.", "content": {"text/event-stream": {"schema": schema}}}
    if operation.text is not None:
        schema = {"type": "string"}
        return {"description": "A text.", "content": {operation.text.partition(";")[0]: {"schema": schema}}}
    if operation.gives is None:
        return {"description": "It is done."}
    content: dict[str, Any] = {_JSON: {"schema": _reference(operation.gives)}}
    if operation.has_stream:
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": "An `Envelope` as JSON in the data of each event."}
        }
    described = {"description": _first_line(operation.gives), "content": content}
    if operation.has_etag:
        text = "The version of the session, for `If-Match`."
        described["headers"] = {"ETag": {"description": text, "schema": {"type": "string"}}}
    return described


def _none(operation: Operation) -> dict[str, Any]:
    """Return the 204 response of a stream that may not exist."""
    if operation.streams is None or operation.method != "GET" or "{agent_id}" not in operation.path:
        return {}
    return {"204": {"description": "There is none."}}


def _refusals(operation: Operation) -> dict[str, dict[str, Any]]:
    texts = {
        "400": "The request is invalid.",
        "401": "The server does not know this client.",
        "421": "The server was reached under a name that is not its own.",
        "503": "Sessions cannot be used at the moment, or there are too many requests, streams or runs: try "
        "again after the seconds of `Retry-After`.",
    }
    if operation.name in _BEGUN_BY_WORKERS:
        texts["503"] += " On Temporal: no worker began the request in time (`no_worker`); it stays queued."
    if operation.is_public:
        texts = {"503": "There are too many requests."}
    if "{agent_id}" in operation.path or (operation.streams is not None and operation.method != "GET"):
        texts["404"] = "The session does not exist."
    if operation.right is not None:
        texts["403"] = f"The client does not have the right `{operation.right}`."
    if operation.method != "GET":
        texts |= {
            "403": "A page of another site, or a client without the right to do so, may not do this.",
            "409": "The session does not allow it at the moment.",
        }
    if operation.takes is not None:
        texts |= {
            "408": "The body took too long.",
            "413": "The body is too large.",
            "415": "The body is not JSON.",
            "422": "The `Idempotency-Key` was used for another request."
            if operation.streams is None
            else "The last message cannot be answered, or another one was sent under its id.",
        }
    if operation.is_conditional:
        texts["412"] = "The session is not at the version of `If-Match`."
    content = {_JSON: {"schema": _reference(Refusal)}}
    found = {status: {"description": text, "content": content} for status, text in sorted(texts.items())}
    text = "The seconds after which to try again."
    found["503"]["headers"] = {"Retry-After": {"description": text, "schema": {"type": "integer"}}}
    return found


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _IN_PATH.items()
        if f"{{{name}}}" in operation.path
    ]


_IN_PATH: Mapping[str, dict[str, Any]] = {
    "agent_id": {"type": "string", "minLength": 1, "maxLength": LONGEST_ID},
    "index": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
}


def _in_query(operation: Operation) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REFERENCE + "{name}")
    properties = components[operation.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, **_as_sent(_without_null(schema))}
        for name, schema in properties.items()
    ]


def _in_header(operation: Operation) -> list[dict[str, Any]]:
    headers = []
    if operation.has_stream:
        text = "The id of the last event that was received; browsers send it when they connect again."
        headers.append(_header("Last-Event-ID", text, {"type": "string"}))
    if operation.takes is not None and operation.streams is None:
        text = (
            "A key of the client's choice. A request that is sent again under the same key is carried out "
            "once, and gets the first answer again."
        )
        schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
        headers.append(_header("Idempotency-Key", text, schema))
    if operation.is_conditional:
        text = "Do it only if the session has this `ETag`."
        headers.append(_header("If-Match", text, {"type": "string"}))
    return headers


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _as_sent(schema: dict[str, Any]) -> dict[str, Any]:
    if "contentSchema" not in schema:
        return {"schema": schema}
    content = {schema["contentMediaType"]: {"schema": schema["contentSchema"]}}
    return {"description": schema["description"], "content": content}


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional query parameter, which is never null."""
    kept: dict[str, Any] = {
        key: value for key, value in schema.items() if not (key == "default" and value is None)
    }
    choices = [choice for choice in kept.pop("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        kept |= choices[0]
    elif choices:
        kept["anyOf"] = choices
    return kept


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    given = {operation.gives for operation in operations} | {operation.takes for operation in operations}
    types = {each for each in given if each is not None} | {Refusal}
    queries = {operation.query for operation in operations}
    listed = sorted(types | queries, key=lambda each: each.__name__)
    _, components = msgspec.json.schema_components(listed, ref_template=_REFERENCE + "{name}")
    for query in queries:
        components.pop(query.__name__, None)
    components[EventPage.__name__]["properties"]["events"]["items"] = {"$ref": _REFERENCE + "Envelope"}
    components[History.__name__]["properties"]["messages"]["items"] = {"$ref": _REFERENCE + "UiMessage"}
    components[Trace.__name__]["properties"]["steps"]["items"] = {"type": "object"}
    for component in components.values():
        if "description" in component:  # A docstring, whose indentation Python removes only since 3.13.
            component["description"] = cleandoc(component["description"])
    schemas: dict[str, Any] = {**components}
    return schemas | _published("Envelope", "envelope") | _published("UiMessage", "ui_message")


def _published(name: str, file: str) -> dict[str, Any]:
    """Return a published schema, with its definitions as separate components."""
    text = (files("whyloop.wire") / "schemas" / f"{file}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = msgspec.json.decode(text.replace("#/$defs/", f"{_REFERENCE}{name}_"))
    parts = schema.pop("$defs", {})
    schema.pop("$schema", None)
    schema.pop("$id", None)
    return {name: schema} | {f"{name}_{part}": inner for part, inner in parts.items()}


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _REFERENCE + kind.__name__}


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]
