"""From a function's signature and docstring to what a model is told and held to."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, convert
from msgspec.structs import asdict

from whyloop.errors import ToolDefinitionError
from whyloop.rules.json_schema import described, from_plain, schema_of

Hints = Mapping[str, Any]


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
        self._optional = [field[0] for field in fields if len(field) == 3]
        self._defaults = {name: parameters[name].default for name in self._optional}

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values; a `msgspec.ValidationError` if they do not fit."""
        values = asdict(convert(arguments, self._struct, dec_hook=from_plain))
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values

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
