"""The arguments of tools: their JSON schema, and the check of a model's arguments."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from whyloop.errors import ToolDefinitionError
from whyloop.rules.classification import error_text
from whyloop.tools.conversion import convert, converter, message_and_path, msgspec_knows, refuse_type
from whyloop.tools.types import described, object_schema

Hints = Mapping[str, Any]
Schema = Mapping[str, Any]

LONGEST_SCHEMA = 400

# One step of a path into arguments: a field of an object, or any item of a list.
_STEP = re.compile(r"\.\w+|\[[^\]]*\]")


_UNCHANGEABLE = frozenset((str, int, float, bool, type(None)))


class Misfit(Struct, frozen=True):
    """A problem with one argument; only the text for the model shows its value."""

    for_people: str
    """The problem without the value."""
    for_model: str
    """The problem with the value, for the model to correct."""
    schema: str = ""
    """The part of the schema that the argument does not fit, as JSON."""


class Arguments:
    """The arguments of a tool: their JSON schema, and the check of those of a model."""

    def __init__(
        self, name: str, parameters: Mapping[str, inspect.Parameter], hints: Hints, docs: Mapping[str, str]
    ):
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        for key, parameter in parameters.items():
            annotation = described(hints[key], docs.get(key))
            if parameter.default is inspect.Parameter.empty:
                fields.append((key, annotation))
            else:
                # A missing argument is not passed on, so the function's own default applies.
                fields.append((key, annotation | msgspec.UnsetType, UNSET))
        self._types = {field[0]: field[1] for field in fields}
        self._optional = [field[0] for field in fields if len(field) == 3]
        self._defaults = {name: parameters[name].default for name in self._optional}
        required = [field[0] for field in fields if len(field) == 2]
        struct_name = f"{name}_arguments"
        try:
            self._struct = msgspec.defstruct(struct_name, fields, kw_only=True, forbid_unknown_fields=True)
            self.schema = object_schema(self._types, required, self._defaults)
            for kind in self._types.values():
                refuse_type(kind)
        except Exception as error:
            raise ToolDefinitionError(f"tool {name!r}: no JSON schema for its signature: {error}") from error
        self._is_plain = msgspec_knows(self._struct)
        self._may_change = any(hints[key] not in list(_UNCHANGEABLE) for key in parameters)
        self._convert = converter(self._struct)

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values; raise a `ValidationError` for a misfit."""
        if self._may_change and not _UNCHANGEABLE.issuperset(map(type, arguments.values())):
            arguments = deepcopy(dict(arguments))  # They are recorded, and a tool may change what it gets.
        if not self._is_plain:
            return self._parse_each(arguments)
        values = asdict(self._convert(arguments, self._struct))
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values

    def _parse_each(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with a union of classes among them, which msgspec refuses."""
        if (problems := self.problems(arguments)) != []:
            raise msgspec.ValidationError("; ".join(problem.for_model for problem in problems))
        return {name: convert(value, self._types[name]) for name, value in arguments.items()}

    def fits(self, arguments: Mapping[str, Any] | str) -> bool:
        """Return whether the tool can be called with these arguments."""
        try:
            if self._is_plain:
                self._convert(arguments, self._struct)
                return True
            return not isinstance(arguments, str) and self.problems(arguments) == []
        except Exception:
            return False

    def problems(self, arguments: Mapping[str, Any]) -> list[Misfit]:
        """Return the problems of arguments that do not fit, one for each argument."""
        found = [self._unknown(name) for name in arguments if name not in self._types]
        for name, kind in self._types.items():
            if name not in arguments:
                if name not in self._optional:
                    found.append(Misfit(f"{name} is missing", f"{name} is missing", self._schema_at(name)))
                continue
            try:
                convert(arguments[name], kind)
            except Exception as error:
                message, path = _message_and_path(error)
                for_model = f"{name}{path}: {message}"
                found.append(Misfit(f"{name} does not fit", for_model, self._schema_at(name, path)))
        return found

    def _unknown(self, name: str) -> Misfit:
        known = ", ".join(self._types) or "none"
        return Misfit("an argument is unknown", f"there is no argument {name!r}; the arguments are: {known}")

    def _schema_at(self, name: str, path: str = "") -> str:
        return schema_at(self.schema, f".{name}{path}")

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function will see them, with its defaults."""
        return {**self._defaults, **self.parse(arguments)}


class SchemaArguments:
    """The arguments of a tool that is known by its JSON schema alone."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the arguments; raise a `ValueError` if they do not fit."""
        if (problem := problem_with(dict(arguments), self.schema)) is not None:
            raise ValueError(problem)
        return deepcopy(dict(arguments))  # A toolset may change its arguments.

    def fits(self, arguments: Mapping[str, Any] | str) -> bool:
        """Return whether the tool can be called with these arguments."""
        try:
            return not isinstance(arguments, str) and problem_with(dict(arguments), self.schema) is None
        except Exception:  # The schema itself is invalid.
            return False

    def problems(self, arguments: Mapping[str, Any]) -> list[Misfit]:
        """Return the problems of arguments that do not fit."""
        problem = problem_with(dict(arguments), self.schema)
        return [] if problem is None else [Misfit("they do not fit its schema", problem)]

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the toolset will see them."""
        return self.parse(arguments)


def signature_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    """Return the function's signature; refuse one that a model could not use."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r} has no signature to make a schema from: {error}") from None
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"tool {name!r}: invalid parameter {parameter}: a model passes arguments by name"
            )
        if parameter.annotation is parameter.empty and parameter.name in ("self", "cls"):
            raise ToolDefinitionError(
                f"tool {name!r} is a method of a class: use tool(thing.{name}) on an instance"
            )
        if parameter.annotation is parameter.empty:
            raise ToolDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} has no type: write {parameter.name}: str, "
                "for example"
            )
    return signature


def hints_of(function: Callable[..., Any], name: str, scope: Mapping[str, Any]) -> Hints:
    """Return the types of the parameters; names are looked up in the scope too."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, localns=dict(scope), include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(f"tool {name!r}: its types cannot be resolved: {error}") from error


def _message_and_path(error: Exception) -> tuple[str, str]:
    """Return an error's message, and the path that msgspec puts at its end."""
    if not isinstance(error, msgspec.ValidationError):
        return error_text(error), ""
    message, path = message_and_path(error)
    return message, re.sub(r"\[[^\]]*\]", "[]", path)


def schema_at(schema: Schema, path: str) -> str:
    """Return the schema at a path like `.items[0].name`, as JSON.

    It is the deepest part that is known.
    """
    part = _walk(schema, path)[1]
    text = json.dumps({key: value for key, value in part.items() if key != "$defs"}, ensure_ascii=False)
    return text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]}…"


def known_names(schema: Schema, path: str) -> str:
    """Return the known fields of a path, without keys that a model made up."""
    return ".".join(_walk(schema, path)[0])


def _walk(schema: Schema, path: str) -> tuple[list[str], Mapping[str, Any]]:
    definitions, names = schema.get("$defs", {}), []
    part = _resolved(dict(schema), definitions)
    for key in _STEP.findall(path):
        inner = part.get("items") if key.startswith("[") else part.get("properties", {}).get(key[1:])
        if not isinstance(inner, dict):
            break
        if key.startswith("."):
            names.append(key[1:])
        part = _resolved(inner, definitions)
    return names, part


def _resolved(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with a reference at its top replaced by what it refers to."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    resolved: dict[str, Any] = definitions.get(name, schema)
    return resolved


# Whether a value fits a schema, for the part of JSON Schema that structured output uses

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
    """Return the path and problem of the first misfit; None if the value fits."""
    return next((f"{path} {problem}" for path, problem in problems_with(value, schema)), None)


def problems_with(value: Any, schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the path of each misfit, with the problem; no problem shows a value."""
    return _problems(value, schema, _Root(schema), "$")


class _Root(Struct):
    """The schema in which references are looked up, and the results of checks so far.

    The results are kept because nested alternatives check the same part many times.
    """

    schema: Schema
    fitting: dict[tuple[int, int], bool] = {}

    def fits(self, value: Any, schema: Any, path: str) -> bool:
        key = id(value), id(schema)
        if key not in self.fitting:
            self.fitting[key] = next(_problems(value, schema, self, path), None) is None
        return self.fitting[key]


def _problems(value: Any, schema: Any, root: _Root, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, Mapping):
        return
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        defined = root.schema.get("$defs") or root.schema.get("definitions") or {}
        yield from _problems(value, root.schema if reference == "#" else defined.get(name), root, path)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_TYPES.get(kind, bool)(value) for kind in kinds):
        yield path, f"is {_name(value)} instead of {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        yield path, f"is none of its {len(schema['enum'])} values"
    if "const" in schema and value != schema["const"]:
        yield path, "is not its one value"
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword) or []
        if choices and not any(root.fits(value, one, path) for one in choices):
            yield path, f"fits none of its {len(choices)} alternatives"
    for part in schema.get("allOf") or []:
        yield from _problems(value, part, root, path)
    if isinstance(value, dict):
        yield from _problems_inside(value, schema, root, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, schema.get("items"), root, f"{path}[{index}]")


def _problems_inside(
    value: dict[str, Any], schema: Schema, root: _Root, path: str
) -> Iterator[tuple[str, str]]:
    for name in schema.get("required") or []:
        if name not in value:
            yield f"{path}.{name}", "is missing"
    for name, item in value.items():
        for part in schemas_of_field(name, schema):
            if part is False:
                yield f"{path}.{name}", "is not in the schema"
            else:
                yield from _problems(item, part, root, f"{path}.{name}")


def schemas_of_field(name: str, schema: Schema) -> list[Any]:
    """Return the schemas that a field must fit; False for a forbidden field."""
    properties = schema.get("properties") or {}
    found = [properties[name]] if name in properties else []
    if patterns := schema.get("patternProperties"):
        found += [part for pattern, part in patterns.items() if re.search(pattern, name)]
    return found or [schema.get("additionalProperties")]


def _name(value: Any) -> str:
    return next((kind for kind, fits in _TYPES.items() if fits(value)), type(value).__name__)
