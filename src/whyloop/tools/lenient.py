"""Lenient arguments: obvious mistakes of a model, corrected before a call runs.

Each change has a single meaning: a number or a boolean written as text, a whole float for an integer, an
object or a list written as JSON text, a field that the tool does not have. Arguments that fit are never
changed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from whyloop.tools.schema import Arguments, Schema, SchemaArguments, problem_with, schemas_of_field
from whyloop.values.encoding import is_too_deep

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "false": False}
_LONGEST_NUMBER = 400


def lenient(arguments: Mapping[str, Any] | str, tool: Arguments | SchemaArguments) -> dict[str, Any] | None:
    """Return corrected arguments that fit, or None."""
    given: Any = arguments
    try:
        if isinstance(arguments, str):  # A string with JSON in it; others were refused earlier.
            given = msgspec.json.decode(arguments)
            if not isinstance(given, str):
                return None
        changed = _relaxed(given, tool.schema, _Root(tool.schema))
    except Exception:  # Not JSON, or the schema itself is invalid: it came from a toolset.
        return None
    return changed if isinstance(changed, dict) and not is_too_deep(changed) and tool.fits(changed) else None


class _Root(Struct):
    """The schema in which references are looked up, and the values that were relaxed so far.

    The values are kept because nested alternatives relax the same part many times. A part is found by its id,
    so the parts are kept too.
    """

    schema: Schema
    relaxed: dict[tuple[int, int], tuple[Any, Any, Any]] = {}


def _relaxed(value: Any, schema: Any, root: _Root) -> Any:
    """Return the value in the form of this schema, as far as that is obvious."""
    key = id(value), id(schema)
    if key not in root.relaxed:
        root.relaxed[key] = value, schema, _relax(value, schema, root)
    return root.relaxed[key][2]


def _relax(value: Any, schema: Any, root: _Root) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(reference := schema.get("$ref"), str):
        defined = root.schema.get("$defs") or root.schema.get("definitions") or {}
        name = reference.rpartition("/")[2]
        value = _relaxed(value, root.schema if reference == "#" else defined.get(name), root)
    for part in schema.get("allOf") or []:
        value = _relaxed(value, part, root)
    for keyword in ("anyOf", "oneOf"):
        value = _relaxed_by_one_of(value, schema.get(keyword) or [], root)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _relaxed_by_one_of(value, [{**schema, "type": kind} for kind in kinds], root)
    if kinds == "object" or "properties" in schema:
        value = _json(value, dict)
        return _relaxed_fields(value, schema, root) if isinstance(value, dict) else value
    if kinds == "array":
        value = _json(value, list)
        return _relaxed_items(value, schema, root) if isinstance(value, list) else value
    return _scalar(value, kinds)


def _relaxed_by_one_of(value: Any, choices: list[Any], root: _Root) -> Any:
    """Return the value in the form of an alternative, unless one accepts it unchanged.

    Of the alternatives that keep most of the value, the first is chosen. Otherwise one without a required
    field would accept any object, and drop all its fields.
    """
    if any(_fits(value, choice, root) for choice in choices):
        return value
    relaxed = [(_relaxed(value, choice, root), choice) for choice in choices]
    return max([each for each, choice in relaxed if _fits(each, choice, root)], key=_size, default=value)


def _size(value: Any) -> int:
    """Return the number of fields and items in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(inner) + sum(map(_size, inner))


def _fits(value: Any, schema: Any, root: _Root) -> bool:
    """Return whether a value fits a schema; a whole float is not an integer."""
    if not isinstance(schema, Mapping):
        return True
    definitions = {key: root.schema[key] for key in ("$defs", "definitions") if key in root.schema}
    return problem_with(_without_whole_floats(value), {**definitions, **schema}) is None


def _without_whole_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_whole_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_whole_floats(item) for item in value]
    return 0.5 if isinstance(value, float) else value


def _relaxed_fields(value: dict[str, Any], schema: Schema, root: _Root) -> dict[str, Any]:
    """Return an object with relaxed fields, without those that the schema forbids."""
    kept = {}
    for name, item in value.items():
        parts = schemas_of_field(name, schema)
        if parts != [False]:
            kept[name] = functools.reduce(lambda changed, part: _relaxed(changed, part, root), parts, item)
    return kept


def _relaxed_items(value: list[Any], schema: Schema, root: _Root) -> list[Any]:
    first: list[Any] = schema.get("prefixItems") or []
    rest = schema.get("items")
    return [
        _relaxed(item, first[index] if index < len(first) else rest, root) for index, item in enumerate(value)
    ]


def _json(value: Any, kind: type) -> Any:
    """Return the object or the list in a JSON text; the value if it is something else."""
    if not isinstance(value, str):
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return value
    return found if isinstance(found, kind) else value


def _scalar(value: Any, kind: Any) -> Any:
    """Return the number or boolean of a text, or the integer of a whole float."""
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return value
    text = value.strip()
    if kind == "integer" and _WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    if kind == "number" and _NUMBER.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else value
    if kind == "boolean":
        return _BOOLEANS.get(text, value)
    return value
