"""JSON schemas of Python types, pydantic's models among them, as one object that providers accept."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_CONSTRAINTS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")


def described(annotation: Any, from_docstring: str | None) -> Any:
    """A type with its description and its bounds in the form that msgspec knows.

    The words of an `Annotated` go before those of the docstring.
    """
    words = from_docstring
    bounds: dict[str, Any] = {}
    if typing.get_origin(annotation) is Annotated:
        annotation, *notes = typing.get_args(annotation)
        own = [note for note in notes if isinstance(note, msgspec.Meta)]
        for note in notes:
            said = note if isinstance(note, str) else getattr(note, "description", None)
            words = said if isinstance(said, str) else words
            # Pydantic's Field keeps its bounds in a list; annotated-types are bounds themselves.
            for bound in (*getattr(note, "metadata", ()), note) if note not in own else ():
                found = {key: getattr(bound, key, None) for key in _CONSTRAINTS}
                bounds |= {key: value for key, value in found.items() if isinstance(value, int | float | str)}
        annotation = Annotated[(annotation, *own)] if own else annotation
    if words:
        bounds["description"] = words
    return Annotated[annotation, msgspec.Meta(**bounds)] if bounds else annotation


def from_plain(kind: Any, value: Any) -> Any:
    """A pydantic model from what a model sent."""
    if is_pydantic(kind):
        return kind.model_validate(value)
    raise TypeError(f"a {kind!r} cannot be made from a model's arguments")


def is_pydantic(kind: Any) -> bool:
    """Known by its methods, so that whyloop need not import pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def schema_of(struct: type) -> dict[str, Any]:
    """The struct's schema as one object, with whatever it refers to in `$defs`."""
    (top,), definitions = msgspec.json.schema_components(
        (struct,), schema_hook=_custom_schema, ref_template="#/$defs/{name}"
    )
    schema = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    shared: dict[str, Any] = {}
    schema = _hoisted(schema, shared)
    for name, definition in definitions.items():
        shared[name] = _hoisted(definition, shared)
    return {**schema, "$defs": shared} if shared else schema


def _custom_schema(kind: Any) -> dict[str, Any]:
    if is_pydantic(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    raise TypeError(f"{kind!r} has no JSON schema: use plain types, dataclasses, structs or models")


def _hoisted(schema: Any, shared: dict[str, Any]) -> Any:
    """A schema whose own `$defs` (pydantic nests them) moved to the root, under names of their own."""
    if isinstance(schema, list):
        return [_hoisted(item, shared) for item in schema]
    if not isinstance(schema, dict):
        return schema
    nested = schema.pop("$defs", {})
    names: dict[str, str] = {}
    for name, definition in nested.items():
        free = name
        while shared.get(free, definition) != definition:
            free += "_"
        names[name] = free
        shared.setdefault(free, definition)
    renamed = {old: new for old, new in names.items() if old != new}
    for free in names.values():
        shared[free] = _hoisted(_renamed(shared[free], renamed), shared)
    return {key: _hoisted(_renamed(value, renamed), shared) for key, value in schema.items()}


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if not names:
        return schema
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _renamed(value, names) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.removeprefix("#/$defs/")
        changed["$ref"] = f"#/$defs/{names.get(name, name)}"
    return changed
