"""The JSON schema of a typed answer, in the part of JSON Schema that providers enforce.

OpenAI and Anthropic enforce a schema whose objects list all their fields and allow no others. Bounds that
they do not know become part of a description; the agent checks them when the answer arrives. Gemini takes
more of JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from whyloop.models.provider import Settings
from whyloop.values import encoding
from whyloop.values.model import ModelRequest, OutputMode

_KEPT = frozenset(
    {"type", "description", "enum", "const", "$ref", "items", "anyOf", "properties", "required"}
)
_FORMATS = frozenset(["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
_DROPPED = frozenset({"title", "default", "examples", "discriminator", "additionalProperties", "$defs"})
_GOOGLE = frozenset(
    [
        *("$ref", "$defs", "type", "format", "title", "description", "enum", "anyOf", "oneOf"),
        *("items", "prefixItems", "minItems", "maxItems", "minimum", "maximum"),
        *("properties", "additionalProperties", "required"),
    ]
)
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


# The models of OpenAI from before schemas for answers.
_OLD_GPT = re.compile(r"gpt-3\.5|gpt-4(?![.\w])|gpt-4o-2024-05-13|o1-(?:mini|preview)")
# The models of Anthropic that support schemas: since Opus 4.1 and Sonnet 4.5.
_CLAUDE = re.compile(r"claude-(?!\d|instant|(?:sonnet|opus)-4(?:-0|-2025|@|$))")
# Older models of Google refuse a schema together with tools.
_GEMINI_WITH_TOOLS = re.compile(r"gemini-(?:[3-9]|\d\d)")


def supported_mode(
    api: str, settings: Settings, schema: Mapping[str, Any], *, with_tools: bool
) -> OutputMode:
    """Return the output mode that a model behind this API supports for a schema."""
    quirks, with_tools = settings.quirks, with_tools or bool(settings.extra.get("tools"))
    refuses = "no_schema" in quirks or (with_tools and "no_schema_with_tools" in quirks)
    if not refuses and _takes_schema(api, settings.model, schema, with_tools=with_tools):
        return OutputMode.NATIVE
    has_no_tools = "no_tools" in quirks or settings.tool_choice == "none"
    return OutputMode.PROMPT if has_no_tools else OutputMode.TOOL


def _takes_schema(api: str, model: str, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
    match api:
        case "openai-chat" | "openai-responses":
            return _OLD_GPT.search(model) is None
        case "anthropic":
            known = _CLAUDE.search(model) is not None
            return known and strict_schema(schema) is not None and not is_recursive(schema)
        case "gemini":
            return not with_tools or _GEMINI_WITH_TOOLS.search(model) is not None
    return False


def schema_format(request: ModelRequest, settings: Settings) -> dict[str, Any] | None:
    """Return the form of the answer for OpenAI; None for text."""
    if request.output is not None:
        strict = strict_schema(request.output.schema)
        schema = request.output.schema if strict is None else strict
        return {"name": request.output.name, "schema": schema, "strict": strict is not None}
    if settings.response_format:
        title = str(settings.response_format.get("title") or "answer")
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", title)[:64]
        return {"name": name, "schema": settings.response_format, "strict": True}
    return None


def enforced_schema(request: ModelRequest, settings: Settings) -> Mapping[str, Any] | None:
    """Return the schema of the answer for Anthropic; None for text."""
    if request.output is not None:
        return strict_schema(request.output.schema)
    return settings.response_format


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema as providers enforce it; None if they cannot.

    They cannot enforce an object with arbitrary keys, for example.
    """
    try:
        strict = _strict(schema)
        definitions = {name: _strict(part) for name, part in schema.get("$defs", {}).items()}
    except _NotEnforceableError:
        return None
    return {**strict, "$defs": definitions} if definitions else strict


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a definition refers to itself, directly or through others."""
    definitions = schema.get("$defs", {})
    found = {name: _references(part) for name, part in definitions.items()}
    for _ in found:
        found = {name: refs.union(*(found.get(ref, set()) for ref in refs)) for name, refs in found.items()}
    return any(name in refs for name, refs in found.items())


class _NotEnforceableError(Exception):
    """A schema allows more than a provider can enforce."""


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema.keys() - _DROPPED - {"description"}:
        raise _NotEnforceableError  # It allows anything.
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if schema.get("allOf") or schema.get("prefixItems"):
        raise _NotEnforceableError
    strict = {key: value for key, value in schema.items() if key in _KEPT}
    if alternatives:
        strict["anyOf"] = [_strict(each) for each in alternatives]
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    elif strict.get("type") == "array":
        raise _NotEnforceableError
    if strict.get("type") == "object":
        if "properties" not in strict or schema.get("additionalProperties"):
            raise _NotEnforceableError
        strict["properties"] = {name: _strict(part) for name, part in strict["properties"].items()}
        strict |= {"required": list(strict["properties"]), "additionalProperties": False}
    if schema.get("format") in _FORMATS:
        strict["format"] = schema["format"]
    return _described(strict, schema)


def google_schema(schema: Any) -> Any:
    """Return a schema with only the keywords that Gemini knows."""
    if isinstance(schema, list):
        return [google_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    known = {key: value for key, value in schema.items() if key in _GOOGLE}
    for key in ("items", "additionalProperties", "anyOf", "oneOf", "prefixItems"):
        if key in known:
            known[key] = google_schema(known[key])
    for key in ("properties", "$defs"):
        if key in known:
            known[key] = {name: google_schema(part) for name, part in known[key].items()}
    return _described(known, schema)


def _described(known: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known part of a schema, with its other bounds in the description."""
    if "const" in schema:
        known.pop("const", None)
        known["enum"] = [schema["const"]]
    if "enum" in known and "type" not in known:
        kinds = list(dict.fromkeys(_TYPES.get(type(value), "string") for value in known["enum"]))
        known["type"] = kinds[0] if len(kinds) == 1 else kinds
    unknown = schema.keys() - known.keys() - _DROPPED - {"const", "oneOf"}
    if unknown:
        bounds = {key: schema[key] for key in schema if key in unknown}
        texts = [known.get("description", ""), f"({encoding.json_text(bounds)[1:-1]})"]
        known["description"] = " ".join(filter(None, texts))
    if "$ref" in known and len(known) > 1:  # Nothing else is allowed next to a reference.
        return {"anyOf": [{"$ref": known.pop("$ref")}], **known}
    return known


def _references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set[str]().union(*map(_references, schema))
    if not isinstance(schema, Mapping):
        return set()
    own = {str(schema["$ref"]).rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set[str]()
    return own.union(*map(_references, schema.values()))
