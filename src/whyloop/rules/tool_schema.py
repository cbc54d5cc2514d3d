"""From a function's signature and docstring to what a model is told and held to."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, convert
from msgspec.structs import asdict

from whyloop.errors import ToolDefinitionError

Hints = Mapping[str, Any]


class Arguments:
    """The arguments that a tool takes: their JSON schema, and the check of what a model sends."""

    def __init__(
        self, name: str, parameters: Mapping[str, inspect.Parameter], hints: Hints, docs: Mapping[str, str]
    ):
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        for key, parameter in parameters.items():
            annotation = _described(hints[key], docs.get(key))
            if parameter.default is inspect.Parameter.empty:
                fields.append((key, annotation))
            else:
                # A missing argument is simply not passed on, so the function's own default holds.
                fields.append((key, annotation | msgspec.UnsetType, UNSET))
        struct_name = "".join(word.capitalize() for word in name.split("_")) or "Arguments"
        try:
            self._struct = msgspec.defstruct(struct_name, fields, kw_only=True, forbid_unknown_fields=True)
            self.schema = _with_defaults(_schema_of(self._struct), parameters)
        except ToolDefinitionError:
            raise
        except Exception as error:
            raise ToolDefinitionError(f"tool {name!r}: no JSON schema for its signature: {error}") from error
        self._optional = [field[0] for field in fields if len(field) == 3]

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values; a `msgspec.ValidationError` if they do not fit."""
        values = asdict(convert(arguments, self._struct, dec_hook=_from_plain))
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values


def signature_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The function's signature; a `ToolDefinitionError` if a model could not be told about it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r} has no signature to make a schema from: {error}") from None
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"tool {name!r}: a model passes arguments by name, which {parameter} does not allow"
            )
        if parameter.annotation is parameter.empty:
            raise ToolDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} has no type, so no model knows what to send"
            )
    return signature


def hints_of(function: Callable[..., Any], name: str, scope: Mapping[str, Any]) -> Hints:
    """The types of the parameters, `Annotated` kept; names are looked up in the scope too."""
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing.get_type_hints(target, localns=dict(scope), include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(f"tool {name!r}: its types cannot be resolved: {error}") from error


_SECTION = re.compile(r"^\s*(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_UNDERLINE = re.compile(r"^\s*-{3,}\s*$")
_ENTRY = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_HEADER = re.compile(r"^\s*(?:[A-Z]\w*:\s*$|:\w+)")


def docstring_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A docstring's text without its parameters, and what it says about each of them.

    The Google, NumPy and Sphinx ways of writing are understood.
    """
    text: list[str] = []
    parameters: dict[str, str] = {}
    inside = numpy = False
    current: str | None = None
    for line in (inspect.getdoc(function) or "").splitlines():
        if match := _FIELD.match(line):
            inside, current = False, match[1]
            parameters[current] = match[2]
        elif _SECTION.match(line):
            inside, numpy, current = True, not line.rstrip().endswith(":"), None
        elif inside and numpy and _UNDERLINE.match(line):
            continue
        elif inside and numpy and line and not line[0].isspace():
            current = line.split(":")[0].strip()
            parameters[current] = ""
        elif inside and not numpy and line[:1].isspace() and (match := _ENTRY.match(line)):
            current = match[1]
            parameters[current] = match[2]
        elif current and line[:1].isspace() and line.strip():
            parameters[current] = f"{parameters[current]} {line.strip()}".strip()
        elif not line.strip() or (inside and line[:1].isspace()):
            current = None if not line.strip() else current
            if not inside:
                text.append(line)
        else:
            inside, current = False, None
            if _HEADER.match(line):
                break
            text.append(line)
    return "\n".join(text).strip(), parameters


def _described(annotation: Any, from_docstring: str | None) -> Any:
    """The annotation with its description in the form that msgspec knows."""
    words = from_docstring
    if typing.get_origin(annotation) is Annotated:
        kind, *notes = typing.get_args(annotation)
        for note in notes:
            said = note if isinstance(note, str) else getattr(note, "description", None)
            words = said if isinstance(said, str) else words
        metas = [note for note in notes if isinstance(note, msgspec.Meta)]
        annotation = Annotated[(kind, *metas)] if metas else kind
    return Annotated[annotation, msgspec.Meta(description=words)] if words else annotation


def _is_pydantic(kind: Any) -> bool:
    """Known by its methods, so that whyloop need not import pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _from_plain(kind: Any, value: Any) -> Any:
    if _is_pydantic(kind):
        return kind.model_validate(value)
    raise TypeError(f"a {kind!r} cannot be made from a model's arguments")


def _describe_custom(kind: Any) -> dict[str, Any]:
    if _is_pydantic(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    raise ToolDefinitionError(f"{kind!r} has no JSON schema: use plain types, dataclasses, structs or models")


def _schema_of(struct: type) -> dict[str, Any]:
    """The struct's schema as one object, with whatever it refers to in `$defs`."""
    (top,), definitions = msgspec.json.schema_components(
        (struct,), schema_hook=_describe_custom, ref_template="#/$defs/{name}"
    )
    schema = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    schema = _hoisted(schema, definitions)
    definitions = {name: _hoisted(definition, definitions) for name, definition in list(definitions.items())}
    return {**schema, "$defs": definitions} if definitions else schema


def _hoisted(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema whose own `$defs` (pydantic nests them) moved to the root, where its references point."""
    if isinstance(schema, list):
        return [_hoisted(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    for name, definition in schema.pop("$defs", {}).items():
        definitions.setdefault(name, _hoisted(definition, definitions))
    return {key: _hoisted(value, definitions) for key, value in schema.items()}


def _with_defaults(schema: dict[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    for key, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            try:
                schema["properties"][key]["default"] = msgspec.to_builtins(parameter.default)
            except (TypeError, ValueError):
                continue  # A default without a plain form still holds; the model is just not told of it.
    return schema
