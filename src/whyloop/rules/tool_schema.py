"""From a function's signature and docstring to what a model is told and held to."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, convert
from msgspec.structs import asdict

from whyloop.errors import ToolDefinitionError
from whyloop.rules.classify import words_of
from whyloop.rules.json_schema import described, from_plain, schema_of

Hints = Mapping[str, Any]

LONGEST_SCHEMA = 400

# One step of a path into arguments: a field of an object, or any item of a list.
_STEP = re.compile(r"\.\w+|\[\]")


class Problem(Struct, frozen=True):
    """What is wrong with one argument, in two texts: only that for the model shows what was sent."""

    for_people: str
    for_model: str
    schema: str = ""
    """The part of the schema that the argument does not fit, as JSON."""


class Arguments:
    """The arguments that a tool takes: their JSON schema, and the check of what a model sends."""

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
        """The arguments as Python values; a `msgspec.ValidationError` if they do not fit."""
        values = asdict(convert(arguments, self._struct, dec_hook=from_plain))
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values

    def problems(self, arguments: Mapping[str, Any]) -> list[Problem]:
        """Return what is wrong with arguments that do not fit, one problem for each argument."""
        found = [self._unknown(name) for name in arguments if name not in self._types]
        for name, kind in self._types.items():
            if name not in arguments:
                if name not in self._optional:
                    found.append(Problem(f"{name} is missing", f"{name} is missing", self._schema_at(name)))
                continue
            try:
                convert(arguments[name], kind, dec_hook=from_plain)
            except Exception as error:
                words, path = _words_and_path(error)
                for_model = f"{name}{path}: {words}"
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
        """The arguments as the function will see them: also those that it has by default."""
        return {**self._defaults, **self.parse(arguments)}


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
    """The types of the parameters, `Annotated` kept; names are looked up in the scope too."""
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
                continue  # A default that JSON cannot say still holds; the model is just not told of it.
            schema["properties"][key]["default"] = plain
    return schema


def _words_and_path(error: Exception) -> tuple[str, str]:
    """Return what an error says, and where in the argument; msgspec names the place after the words."""
    words, _, place = str(error).rpartition(" - at `$")
    if isinstance(error, msgspec.ValidationError) and words and place.endswith("`"):
        return words, re.sub(r"\[[^\]]*\]", "[]", place[:-1])
    return (str(error) if isinstance(error, msgspec.ValidationError) else words_of(error)), ""


def _resolved(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with a reference at its top replaced by what it refers to."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    resolved: dict[str, Any] = definitions.get(name, schema)
    return resolved
