"""The JSON schemas of Python types; `conversion.py` makes values of them from JSON.

This module handles descriptions of fields, formats of times, literals in the order of their declaration,
pydantic's models, and unions with the fields that distinguish their classes. msgspec describes all other
types.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin
from uuid import UUID

import msgspec

from whyloop.tools.docstrings import class_description, field_descriptions

_CONSTRAINTS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")
_SCALARS: dict[Any, dict[str, Any]] = {
    Any: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "string", "format": "duration"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": "string", "format": "decimal"},
}
UNIONS = (Union, types.UnionType)


# Schemas


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, with the classes in it in `$defs`.

    The schema of a class is that of the object itself; raise a `TypeError` for a type without a JSON form.
    """
    definitions: dict[str, Any] = {}
    schema = with_definitions(_Schemas(definitions).of(kind), definitions)
    if schema.keys() != {"$ref", "$defs"}:
        return schema
    shared, name = schema["$defs"], schema["$ref"].rpartition("/")[2]
    inlined = shared[name]
    if not _refers(list(shared.values()), name):
        del shared[name]
    return {**inlined, "$defs": shared} if shared else dict(inlined)


def object_schema(
    fields: Mapping[str, Any], required: list[str], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    definitions: dict[str, Any] = {}
    schemas = _Schemas(definitions)
    properties = {name: schemas.of(kind) for name, kind in fields.items()}
    for name, default in (defaults or {}).items():
        properties[name] |= _default(default)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return with_definitions(schema, definitions)


def with_definitions(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with these definitions, and pydantic's moved to the root."""
    shared: dict[str, Any] = {}
    schema = _hoisted(schema, shared)
    for name, definition in definitions.items():
        shared[name] = _hoisted(definition, shared)
    return {**schema, "$defs": shared} if shared else schema


class _Schemas:
    """A builder of schemas; each class is described once, in `definitions`."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._names: dict[Any, str] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        kind = without_alias(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(kind)
        if origin in (Required, NotRequired):
            return self.of(arguments[0])
        if isinstance(kind, str | typing.ForwardRef | typing.TypeVar):
            raise TypeError(f"the type {kind!r} cannot be resolved")
        if _is_hashable(kind) and kind in _SCALARS:
            return dict(_SCALARS[kind])
        if origin is Literal:
            return {"enum": list(_literals(arguments))}
        if origin in UNIONS:
            return self._union(arguments)
        if origin in (list, set, frozenset) and len(arguments) == 1:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping) and arguments[0] is str:
            inner = self.of(arguments[1])
            return {"type": "object", "additionalProperties": inner} if inner else {"type": "object"}
        if is_pydantic(kind):
            return _model_schema(kind)
        if isinstance(kind, type) and (issubclass(kind, enum.Enum) or is_object(kind)):
            return {"$ref": f"#/$defs/{self._named(kind)}"}
        return self._of_msgspec(kind)

    def _named(self, kind: type) -> str:
        if kind not in self._names:
            name, number = kind.__name__, 1
            while name in self._definitions:
                number += 1
                name = f"{kind.__name__}_{number}"
            self._names[kind] = name
            self._definitions[name] = {}  # A class may refer to itself.
            self._definitions[name] = self._enum(kind) if issubclass(kind, enum.Enum) else self._object(kind)
        return self._names[kind]

    def _annotated(self, kind: Any) -> dict[str, Any]:
        plain = described(kind, None)
        if get_origin(plain) is not Annotated:  # Its metadata is for other programs.
            return self.of(plain)
        annotation, *notes = get_args(plain)
        schema = self.of(annotation)
        bounds: dict[str, Any] = {}
        for note in notes:
            if isinstance(note, msgspec.Meta):
                bounds |= _bounds(note, schema.get("type"))
        return {**bounds, **schema} if "$ref" in schema else {**schema, **bounds}

    def _union(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        kinds = [kind for kind in arguments if kind is not msgspec.UnsetType]
        if len(kinds) == 1:
            return self.of(kinds[0])
        union: dict[str, Any] = {"anyOf": [self.of(kind) for kind in kinds]}
        if (found := discriminator(kinds)) is not None:
            field, by_value = found
            refs = {str(value): self.of(kind).get("$ref") for value, kind in by_value.items()}
            if all(refs.values()):
                union["discriminator"] = {"propertyName": field, "mapping": refs}
        return union

    def _enum(self, kind: type[enum.Enum]) -> dict[str, Any]:
        return {"title": kind.__name__, **_about(kind), "enum": [member.value for member in kind]}

    def _object(self, kind: type) -> dict[str, Any]:
        docs, properties, required = field_descriptions(kind), dict[str, Any](), []
        tag = tag_of(kind)
        if tag is not None:
            properties[tag[0]] = {"enum": [tag[1]]}
            required.append(tag[0])
        for field in fields_of(kind):
            schema = self.of(described(field.kind, docs.get(field.name)))
            properties[field.key] = schema | _default(field.default)
            if field.required:
                required.append(field.key)
        schema = {"title": kind.__name__, **_about(kind), "type": "object", "properties": properties}
        schema["required"] = required
        config = getattr(kind, "__struct_config__", None)
        if config is not None and config.forbid_unknown_fields:
            schema["additionalProperties"] = False
        return schema

    def _of_msgspec(self, kind: Any) -> dict[str, Any]:
        (schema,), definitions = msgspec.json.schema_components(
            (kind,), schema_hook=_model_schema, ref_template="#/$defs/{name}"
        )
        return {**schema, "$defs": definitions} if definitions else schema


class Field(NamedTuple):
    """A field of a dataclass, a `TypedDict` or a struct."""

    name: str
    key: str
    """Its name in JSON."""
    kind: Any
    required: bool
    default: Any = inspect.Parameter.empty


@functools.lru_cache(1024)
def fields_of(kind: Any) -> list[Field]:
    """Return the fields of a class, in the order of their declaration."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [
            Field(f.name, f.encode_name, f.type, f.required, _given(f.default, msgspec.NODEFAULT))
            for f in msgspec.structs.fields(kind)
        ]
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        # If an annotation is a string, Python does not know that its key is not required.
        return [
            Field(name, name, hint, name in kind.__required_keys__ and get_origin(hint) is not NotRequired)
            for name, hint in hints.items()
        ]
    empty = dataclasses.MISSING
    return [
        Field(
            f.name,
            f.name,
            hints[f.name],
            f.default is empty and f.default_factory is empty,
            _given(f.default, empty),
        )
        for f in dataclasses.fields(kind)
        if f.init
    ]


def _given(default: Any, missing: Any) -> Any:
    return inspect.Parameter.empty if default is missing or default is msgspec.UNSET else default


def _default(default: Any) -> dict[str, Any]:
    """Return the default for the schema; omit one that JSON cannot express."""
    if default is inspect.Parameter.empty:
        return {}
    try:
        plain = msgspec.to_builtins(default)
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {}
    return {"default": plain}


def is_object(kind: Any) -> bool:
    """Return whether a type is an object in JSON."""
    if not isinstance(kind, type) or get_args(kind):
        return False
    if issubclass(kind, msgspec.Struct):
        return not kind.__struct_config__.array_like and not getattr(kind, "__parameters__", ())
    return (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)) and not getattr(
        kind, "__parameters__", ()
    )


def tag_of(kind: Any) -> tuple[str, Any] | None:
    """Return the name and the value of the field that identifies a struct in a union."""
    config = getattr(kind, "__struct_config__", None)
    return None if config is None or config.tag_field is None else (config.tag_field, config.tag)


def _literals(arguments: tuple[Any, ...]) -> Iterator[Any]:
    for value in arguments:
        if get_origin(value) is Literal:
            yield from _literals(get_args(value))
        else:
            yield value.value if isinstance(value, enum.Enum) else value


def without_alias(kind: Any) -> Any:
    """Return the type behind `type X = …` and `NewType`."""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def type_name(kind: Any) -> str:
    """Return the name of a type as people write it: "Invoice", "set[int]"."""
    return str(kind) if get_args(kind) else str(getattr(kind, "__name__", kind))


def _is_hashable(kind: Any) -> bool:
    return type(kind).__hash__ is not None and not get_args(kind)


def _model_schema(kind: Any) -> dict[str, Any]:
    if is_pydantic(kind):
        model: dict[str, Any] = kind.model_json_schema()
        return model
    raise TypeError(f"{kind!r} has no JSON schema: use plain types, dataclasses, structs or models")


# Descriptions and bounds


def described(annotation: Any, from_docstring: str | None) -> Any:
    """Return a type with its description and its bounds as msgspec knows them.

    The description of an `Annotated` comes before that of the docstring.
    """
    description = from_docstring
    bounds: dict[str, Any] = {}
    if get_origin(annotation) in (Required, NotRequired):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        own = [note for note in notes if isinstance(note, msgspec.Meta)]
        for note in notes:
            own_text = note if isinstance(note, str) else getattr(note, "description", None)
            description = own_text if isinstance(own_text, str) else description
            # Pydantic's `Field` keeps its bounds in a list; those of annotated-types are bounds themselves.
            for bound in (*getattr(note, "metadata", ()), note) if note not in own else ():
                found = {key: getattr(bound, key, None) for key in _CONSTRAINTS}
                bounds |= {key: value for key, value in found.items() if isinstance(value, int | float | str)}
        annotation = Annotated[(annotation, *own)] if own else annotation
    if description:
        bounds["description"] = description
    return Annotated[annotation, msgspec.Meta(**bounds)] if bounds else annotation


_NUMBERS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_LENGTHS = {"array": "Items", "object": "Properties"}


def _bounds(note: msgspec.Meta, kind: Any) -> dict[str, Any]:
    """Return the keywords of a schema for the bounds of a type."""
    found: dict[str, Any] = {name: getattr(note, key) for key, name in _NUMBERS.items()}
    found["multipleOf"], found["pattern"] = note.multiple_of, note.pattern
    counted = _LENGTHS.get(kind, "Length")
    found[f"min{counted}"], found[f"max{counted}"] = note.min_length, note.max_length
    found |= {"title": note.title, "description": note.description, "examples": note.examples}
    return {key: value for key, value in found.items() if value is not None} | (note.extra_json_schema or {})


def _about(kind: type) -> dict[str, str]:
    text = class_description(kind)
    return {"description": text} if text else {}


def _hoisted(schema: Any, shared: dict[str, Any]) -> Any:
    """Return a schema with nested `$defs` (pydantic has them) moved to the root."""
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


def _refers(schema: Any, name: str) -> bool:
    """Return whether a schema refers to this definition."""
    if isinstance(schema, list):
        return any(_refers(item, name) for item in schema)
    if not isinstance(schema, dict):
        return False
    return schema.get("$ref") == f"#/$defs/{name}" or _refers(list(schema.values()), name)


# Classes


def property_names(kind: Any) -> set[str] | None:
    """Return the names of the fields of a class in JSON; None for another type."""
    if is_pydantic(kind):
        return set(kind.model_json_schema().get("properties", ()))
    if not is_object(kind):
        return None
    tag = tag_of(kind)
    return {field.key for field in fields_of(kind)} | ({tag[0]} if tag else set())


def discriminator(kinds: list[Any]) -> tuple[str, dict[Any, Any]] | None:
    """Return the field that distinguishes the classes of a union, by value."""
    kinds = [kind for kind in kinds if kind is not type(None)]
    if len(kinds) < 2:
        return None
    by_field = [_constants(kind) for kind in kinds]
    for field in by_field[0]:
        values = [constants.get(field, ()) for constants in by_field]
        every = [value for found in values for value in found]
        if all(values) and len(set(every)) == len(every):
            return field, {value: kind for kind, found in zip(kinds, values, strict=True) for value in found}
    return None


def _constants(kind: Any) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a class that are literals, with their values."""
    if is_pydantic(kind):
        named = {name: field.validation_alias or name for name, field in kind.model_fields.items()}
        hints = [
            (key, kind.model_fields[name].annotation) for name, key in named.items() if isinstance(key, str)
        ]
    elif is_object(kind):
        hints = [(field.key, field.kind) for field in fields_of(kind)]
    else:
        return {}
    tag = tag_of(kind)
    found = {tag[0]: (tag[1],)} if tag else {}
    for name, hint in hints:
        inner = get_args(hint)[0] if get_origin(hint) in (Annotated, Required, NotRequired) else hint
        if get_origin(inner) is Literal:
            found[name] = tuple(_literals(get_args(inner)))
    return found


def is_pydantic(kind: Any) -> bool:
    """Return whether a type is a pydantic model, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")
