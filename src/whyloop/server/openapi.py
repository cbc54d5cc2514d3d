"""The document of the API, made of the operations and of what they take and give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import msgspec

from whyloop.server.bodies import EventPage, History, Refusal
from whyloop.server.operations import Operation

_REFERENCE = "#/components/schemas/"
_JSON = "application/json"
VERSION = "1"


def document(operations: Iterable[Operation], root: str = "") -> dict[str, Any]:
    """OpenAPI 3.1, for a server that can do these."""
    operations = tuple(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "whyloop",
            "version": VERSION,
            "description": "Sessions of agents: what they did, why they went on and why they stopped.",
        },
        "servers": [{"url": quote(root) or "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(operations)},
    }


def _described(operation: Operation) -> dict[str, Any]:
    told = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_in_path(operation), *_in_query(operation), *_in_header(operation)],
        "responses": {str(operation.status): _answer(operation), **_refusals(operation)},
    }
    if operation.takes is not None:
        needed = any(field.required for field in msgspec.structs.fields(operation.takes))
        told["requestBody"] = {
            "required": needed,
            "content": {sent_as: {"schema": _reference(operation.takes)} for sent_as in _ways(operation)},
        }
    return told


def _ways(operation: Operation) -> tuple[str, ...]:
    return ("application/x-www-form-urlencoded", _JSON) if operation.is_form else (_JSON,)


def _answer(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": _reference(operation.gives)}}
    if operation.has_stream:
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": "An `Envelope` as JSON in the data of each event."}
        }
    return {"description": _first_line(operation.gives), "content": content}


def _refusals(operation: Operation) -> dict[str, Any]:
    words = {"400": "It makes no sense.", "503": "The store cannot be used at the moment."}
    if "{agent_id}" in operation.path:
        words["404"] = "There is no such session."
    if operation.takes is not None:
        words |= {
            "403": "A page of another site may not do this.",
            "409": "It cannot be done as things are.",
            "413": "It is too large.",
            "415": "It is not JSON.",
        }
    content = {_JSON: {"schema": _reference(Refusal)}}
    return {status: {"description": told, "content": content} for status, told in sorted(words.items())}


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    if "{agent_id}" not in operation.path:
        return []
    schema = {"type": "string", "minLength": 1, "maxLength": 500}
    return [{"name": "agent_id", "in": "path", "required": True, "schema": schema}]


def _in_query(operation: Operation) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REFERENCE + "{name}")
    properties = components[operation.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, **_as_sent(_without_null(schema))}
        for name, schema in properties.items()
    ]


def _in_header(operation: Operation) -> list[dict[str, Any]]:
    if not operation.has_stream:
        return []
    told = "The id of the last event that was heard; browsers send it when they connect again."
    return [{"name": "Last-Event-ID", "in": "header", "description": told, "schema": {"type": "string"}}]


def _as_sent(schema: dict[str, Any]) -> dict[str, Any]:
    if "contentSchema" not in schema:
        return {"schema": schema}
    content = {schema["contentMediaType"]: {"schema": schema["contentSchema"]}}
    return {"description": schema["description"], "content": content}


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is not given is left out of a query, and never null."""
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
    types = {operation.gives for operation in operations} | {Refusal}
    types |= {operation.takes for operation in operations if operation.takes is not None}
    queries = {operation.query for operation in operations}
    listed = sorted(types | queries, key=lambda each: each.__name__)
    _, components = msgspec.json.schema_components(listed, ref_template=_REFERENCE + "{name}")
    for query in queries:
        components.pop(query.__name__, None)
    components[EventPage.__name__]["properties"]["events"]["items"] = {"$ref": _REFERENCE + "Envelope"}
    components[History.__name__]["properties"]["messages"]["items"] = {"$ref": _REFERENCE + "UiMessage"}
    schemas: dict[str, Any] = {**components}
    return schemas | _published("Envelope", "envelope") | _published("UiMessage", "ui_message")


def _published(name: str, file: str) -> dict[str, Any]:
    """A schema that the package publishes, and what it refers to, by names of their own."""
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
