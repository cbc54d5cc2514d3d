"""Whether a value fits a JSON schema, for the part of JSON Schema that structured output uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}


def problem_with(value: Any, schema: Schema) -> str | None:
    """Return the first thing that does not fit, by its path and without the schema; None if all does."""
    return next(_problems(value, schema, schema, "$"), None)


def _problems(value: Any, schema: Any, root: Schema, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        defined = root.get("$defs") or root.get("definitions") or {}
        yield from _problems(value, root if reference == "#" else defined.get(name), root, path)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_TYPES.get(kind, bool)(value) for kind in kinds):
        yield f"{path} is {_name(value)} instead of {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is none of its {len(schema['enum'])} values"
    if "const" in schema and value != schema["const"]:
        yield f"{path} is not its one value"
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word) or []
        if choices and all(next(_problems(value, one, root, path), None) for one in choices):
            yield f"{path} fits none of its {len(choices)} alternatives"
    for part in schema.get("allOf") or []:
        yield from _problems(value, part, root, path)
    if isinstance(value, dict):
        yield from _problems_inside(value, schema, root, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, schema.get("items"), root, f"{path}[{index}]")


def _problems_inside(value: dict[str, Any], schema: Schema, root: Schema, path: str) -> Iterator[str]:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or []:
        if name not in value:
            yield f"{path} lacks {name!r}"
    for name, item in value.items():
        if name in properties:
            yield from _problems(item, properties[name], root, f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path} has {name!r}, which is not in the schema"
        else:
            yield from _problems(item, schema.get("additionalProperties"), root, f"{path}.{name}")


def _name(value: Any) -> str:
    return next((kind for kind, fits in _TYPES.items() if fits(value)), type(value).__name__)
