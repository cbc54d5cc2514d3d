"""JSON schemas of tools and of Python types, and whether a value fits one."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, convert
from msgspec.structs import asdict

from whyloop.errors import ToolDefinitionError
from whyloop.rules.classification import error_text

Hints = Mapping[str, Any]
Schema = Mapping[str, Any]

LONGEST_SCHEMA = 400

# One step of a path into arguments: a field of an object, or any item of a list.
_STEP = re.compile(r"\.\w+|\[\]")


class Problem(Struct, frozen=True):
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
                # A missing argument is simply not passed on, so the function's own default holds.
                fields.append((key, annotation | msgspec.UnsetType, UNSET))
        struct_name = f"{name}_arguments"
        try:
            self._struct = msgspec.defstruct(struct_name, fields, kw_only=True, forbid_unknown_fields=True)
            self.schema = _with_defaults(schema_of(self._struct), parameters)
        except Exception as error:
            raise ToolDefinitionError(f"tool {name!r}: no JSON schema for its signature: {error}") from error
        self._types = {field[0]: field[1] for field in fields}
        self._optional = [field[0] for field in fields if len(field) == 3]
        self._defaults = {name: parameters[name].default for name in self._optional}

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values; raise a `ValidationError` for a misfit."""
        values = asdict(convert(arguments, self._struct, dec_hook=from_plain))
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values

    def problems(self, arguments: Mapping[str, Any]) -> list[Problem]:
        """Return the problems of arguments that do not fit, one for each argument."""
        found = [self._unknown(name) for name in arguments if name not in self._types]
        for name, kind in self._types.items():
            if name not in arguments:
                if name not in self._optional:
                    found.append(Problem(f"{name} is missing", f"{name} is missing", self._schema_at(name)))
                continue
            try:
                convert(arguments[name], kind, dec_hook=from_plain)
            except Exception as error:
                message, path = _message_and_path(error)
                for_model = f"{name}{path}: {message}"
                found.append(Problem(f"{name} does not fit", for_model, self._schema_at(name, path)))
        return found

    def _unknown(self, name: str) -> Problem:
        known = ", ".join(self._types) or "none"
        return Problem("an argument is unknown", f"there is no argument {name!r}; the arguments are: {known}")

    def _schema_at(self, name: str, path: str = "") -> str:
        """Return the schema of one argument, or of the part of it that does not fit."""
        definitions = self.schema.get("$defs", {})
        part = _resolved(self.schema["properties"][name], definitions)
        for key in _STEP.findall(path):
            inner = part.get("items") if key == "[]" else part.get("properties", {}).get(key[1:])
            if not isinstance(inner, dict):
                break
            part = _resolved(inner, definitions)
        text = json.dumps(part, ensure_ascii=False)
        return text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]}…"

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
        return deepcopy(dict(arguments))  # They are recorded, and a toolset may change what it gets.

    def problems(self, arguments: Mapping[str, Any]) -> list[Problem]:
        """Return what is wrong with arguments that do not fit."""
        problem = problem_with(dict(arguments), self.schema)
        return [] if problem is None else [Problem("they do not fit its schema", problem)]

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
                f"tool {name!r}: a model passes arguments by name, which {parameter} does not allow"
            )
        if parameter.annotation is parameter.empty and parameter.name in ("self", "cls"):
            raise ToolDefinitionError(
                f"tool {name!r} is a method of a class: use tool(thing.{name}) on an instance"
            )
        if parameter.annotation is parameter.empty:
            raise ToolDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} has no type, so no model knows what to send"
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


def _with_defaults(schema: dict[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    for key, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            try:
                plain = msgspec.to_builtins(parameter.default)
                json.dumps(plain, allow_nan=False)
            except (TypeError, ValueError, RecursionError):
                continue  # A default that JSON cannot hold still applies; only the model does not see it.
            schema["properties"][key]["default"] = plain
    return schema


def _message_and_path(error: Exception) -> tuple[str, str]:
    """Return an error's message, and the path that msgspec puts at its end."""
    message, _, path = str(error).rpartition(" - at `$")
    if isinstance(error, msgspec.ValidationError) and message and path.endswith("`"):
        return message, re.sub(r"\[[^\]]*\]", "[]", path[:-1])
    return (str(error) if isinstance(error, msgspec.ValidationError) else error_text(error)), ""


def _resolved(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with a reference at its top replaced by what it refers to."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    resolved: dict[str, Any] = definitions.get(name, schema)
    return resolved


# Docstrings, in the Google, NumPy and Sphinx styles

_PARAMETERS = re.compile(r"^(args|arguments|parameters|params)\s*:?$", re.IGNORECASE)
_SECTION = re.compile(r"^(returns?|yields?|raises|examples?|notes?|see also|warnings?)\s*:?$", re.IGNORECASE)
_UNDERLINE = re.compile(r"^-{3,}$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_OTHER_FIELD = re.compile(r"^:\w+[^:]*:")


def docstring_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and its description of each parameter.

    The Google, NumPy and Sphinx ways of writing are understood.
    """
    text: list[str] = []
    parameters: dict[str, str] = {}
    for kind, name, line in _pieces((inspect.getdoc(function) or "").splitlines()):
        if kind == "text":
            text.append(line)
        elif kind == "entry":
            parameters[name] = line
        elif kind == "more" and name in parameters:
            parameters[name] = f"{parameters[name]} {line}".strip()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip(), parameters


def _pieces(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each line with its kind: text, the entry of a parameter, or more of one."""
    section, numpy, current = "", False, ""
    for number, line in enumerate(lines):
        stripped, indented = line.strip(), line[:1].isspace()
        underlined = number + 1 < len(lines) and bool(_UNDERLINE.match(lines[number + 1].strip()))
        if field := _FIELD.match(stripped):
            section, current = "fields", field[1]
            yield "entry", current, field[2]
        elif _OTHER_FIELD.match(stripped):
            section, current = "fields", ""
        elif not indented and (stripped.endswith(":") or underlined) and _PARAMETERS.match(stripped):
            section, numpy, current = "parameters", underlined, ""
        elif not indented and (stripped.endswith(":") or underlined) and _SECTION.match(stripped):
            section, current = "other", ""
        elif _UNDERLINE.match(stripped) or (section and not stripped):
            continue
        elif section == "parameters" and (entry := _entry(stripped, indented=indented, numpy=numpy)):
            current = entry[0]
            yield "entry", *entry
        elif section and indented:
            yield "more", current, stripped
        elif section == "other" and numpy:
            continue
        else:
            if section:
                yield "text", "", ""
            section = ""
            yield "text", "", line


def _entry(line: str, *, indented: bool, numpy: bool) -> tuple[str, str] | None:
    """Return the parameter that a line of a section begins, and its description."""
    if numpy:
        match = None if indented else _NUMPY_ENTRY.match(line)
        return (match[1], "") if match else None
    match = _GOOGLE_ENTRY.match(line) if indented else None
    return (match[1], match[2]) if match else None


# JSON schemas of Python types, pydantic's models among them

_CONSTRAINTS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")


def described(annotation: Any, from_docstring: str | None) -> Any:
    """Return a type with its description and its bounds as msgspec knows them.

    The description of an `Annotated` comes before that of the docstring.
    """
    description = from_docstring
    bounds: dict[str, Any] = {}
    if typing.get_origin(annotation) is Annotated:
        annotation, *notes = typing.get_args(annotation)
        own = [note for note in notes if isinstance(note, msgspec.Meta)]
        for note in notes:
            own_text = note if isinstance(note, str) else getattr(note, "description", None)
            description = own_text if isinstance(own_text, str) else description
            # Pydantic's Field keeps its bounds in a list; annotated-types are bounds themselves.
            for bound in (*getattr(note, "metadata", ()), note) if note not in own else ():
                found = {key: getattr(bound, key, None) for key in _CONSTRAINTS}
                bounds |= {key: value for key, value in found.items() if isinstance(value, int | float | str)}
        annotation = Annotated[(annotation, *own)] if own else annotation
    if description:
        bounds["description"] = description
    return Annotated[annotation, msgspec.Meta(**bounds)] if bounds else annotation


def from_plain(kind: Any, value: Any) -> Any:
    """Return a pydantic model made from a model's arguments."""
    if is_pydantic(kind):
        return kind.model_validate(value)
    raise TypeError(f"a {kind!r} cannot be made from a model's arguments")


def is_pydantic(kind: Any) -> bool:
    """Return whether a type is a pydantic model, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def schema_of(struct: type) -> dict[str, Any]:
    """Return the struct's schema as one object, with its types in `$defs`."""
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
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword) or []
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
