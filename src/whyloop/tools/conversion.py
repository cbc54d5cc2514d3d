"""Values of Python types, made from JSON.

msgspec converts most of them; this module converts pydantic's models and unions of several classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin

import msgspec

from whyloop.tools.types import (
    UNIONS,
    discriminator,
    fields_of,
    is_object,
    is_pydantic,
    property_names,
    tag_of,
    type_name,
    without_alias,
)
from whyloop.values.text import shortened

_AT = " - at `$"
_CONTAINERS: dict[Any, Any] = {list: list, set: list, frozenset: list, tuple: list, dict: dict, Mapping: dict}
_LONGEST_MISFIT = 200

# The results of unions: the data, and its value or the error. Without them, nested alternatives would convert
# the same data repeatedly, twice as often with each level.
_Memo = dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]]


def convert(data: Any, kind: Any) -> Any:
    """Return JSON data as a value of a type.

    Raise a `ValidationError` whose message ends with the path.
    """
    if msgspec_knows(kind):
        return msgspec.convert(data, kind, str_keys=True, dec_hook=from_plain)
    return _convert(data, kind, {})


def converter(kind: Any) -> Callable[..., Any]:
    """Return msgspec's converter for a type.

    It has a hook only if it needs one: 250 ns instead of 600.
    """
    try:
        msgspec.json.schema_components((kind,))
    except TypeError:
        return functools.partial(msgspec.convert, dec_hook=from_plain)
    return msgspec.convert


def to_plain(value: Any) -> Any:
    """Return a value as JSON data that `convert` accepts."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped)


def _dumped(value: Any) -> Any:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def msgspec_knows(kind: Any) -> bool:
    """Return whether msgspec supports a type; it refuses unions of classes."""
    try:
        msgspec.json.Decoder(kind, dec_hook=from_plain)
    except TypeError:
        return False
    return True


_knows = functools.lru_cache(1024)(msgspec_knows)


def _convert(data: Any, kind: Any, memo: _Memo) -> Any:
    """Convert a type with a union in it that msgspec refuses, level by level."""
    kind = without_alias(kind)
    if get_origin(kind) in (Annotated, Required, NotRequired):
        inner, *notes = get_args(kind)
        bounds = [note for note in notes if isinstance(note, msgspec.Meta)]
        if bounds and get_origin(inner) in _CONTAINERS:
            msgspec.convert(data, Annotated[(_CONTAINERS[get_origin(inner)], *bounds)])
        return _convert(data, inner, memo)
    if _knows(kind):
        return msgspec.convert(data, kind, str_keys=True, dec_hook=from_plain)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in UNIONS:
        return _convert_union(data, arguments, memo)
    if origin in (list, set, frozenset, tuple):
        items = msgspec.convert(data, list)
        return origin([_inside(item, arguments[0], f"[{index}]", memo) for index, item in enumerate(items)])
    if origin in (dict, Mapping):
        pairs = msgspec.convert(data, dict[str, Any])
        return {key: _inside(value, arguments[1], "[...]", memo) for key, value in pairs.items()}
    if is_object(kind):
        return _convert_object(data, kind, memo)
    raise TypeError(f"the type {kind!r} is not supported here")


def refuse_type(kind: Any, seen: set[Any] | None = None) -> None:
    """Raise a `TypeError` for a type that `convert` cannot make values of."""
    kind, seen = without_alias(kind), set() if seen is None else seen
    origin, arguments = get_origin(kind), get_args(kind)
    if is_object(kind):
        if kind not in seen:
            seen.add(kind)
            for field in fields_of(kind):
                refuse_type(field.kind, seen)
    elif origin in (Annotated, Required, NotRequired):
        refuse_type(arguments[0], seen)
    elif origin in UNIONS or origin in _CONTAINERS:
        _refuse_members(kind, origin, arguments)
        for argument in arguments:
            if argument is not ...:
                refuse_type(argument, seen)
    elif not msgspec_knows(kind):
        raise TypeError(f"the type {kind!r} is not supported")


def _refuse_members(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> None:
    if origin is tuple and arguments[1:] != (...,) and not msgspec_knows(kind):
        raise TypeError(f"the type {kind!r} is not supported")
    if origin in (set, frozenset) and (kept_out := _unhashable(arguments[0])) is not None:
        raise TypeError(f"a set cannot hold {type_name(kept_out)}, which has no hash: use a list")
    if origin in (dict, Mapping) and is_object(arguments[0]):
        raise TypeError(f"an object in JSON cannot have {type_name(arguments[0])} as its keys: use str")


def _unhashable(kind: Any, seen: tuple[Any, ...] = ()) -> Any:
    """Return the type inside this one that is unhashable, or None."""
    kind = without_alias(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _unhashable(arguments[0], seen)
    if origin in UNIONS or origin is tuple:
        found = (_unhashable(each, seen) for each in arguments)
        return next((each for each in found if each is not None), None)
    config = getattr(kind, "__struct_config__", None)
    if config is not None and config.eq and not config.frozen:
        return kind
    if getattr(origin or kind, "__hash__", None) is None or origin is Mapping:
        return kind
    if not is_object(kind) or kind in seen:
        return None
    found = (_unhashable(field.kind, (*seen, kind)) for field in fields_of(kind))
    return next((each for each in found if each is not None), None)


def _inside(data: Any, kind: Any, step: str, memo: _Memo) -> Any:
    try:
        return _convert(data, kind, memo)
    except msgspec.ValidationError as error:
        message, path = message_and_path(error)
        raise msgspec.ValidationError(f"{message}{_AT}{step}{path}`") from None


def _convert_object(data: Any, kind: Any, memo: _Memo) -> Any:
    given = msgspec.convert(data, dict[str, Any])
    values = {}
    if (tag := tag_of(kind)) is not None and given.get(tag[0], tag[1]) != tag[1]:
        raise msgspec.ValidationError(f"Invalid value {given[tag[0]]!r}{_AT}.{tag[0]}`")
    for field in fields_of(kind):
        if field.key in given:
            values[field.name] = _inside(given[field.key], field.kind, f".{field.key}", memo)
        elif field.required:
            raise msgspec.ValidationError(f"Object missing required field `{field.key}`")
    config = getattr(kind, "__struct_config__", None)
    if config is not None and config.forbid_unknown_fields:
        known = property_names(kind) or set()
        for name in [name for name in given if name not in known]:
            raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise msgspec.ValidationError(str(error)) from error


def _convert_union(data: Any, kinds: tuple[Any, ...], memo: _Memo) -> Any:
    """Return the value of one alternative, which is chosen only once."""
    if not isinstance(data, dict | list):
        return _convert_alternative(data, kinds, memo)
    key = id(data), kinds
    if key not in memo:
        try:
            memo[key] = data, _convert_alternative(data, kinds, memo)
        except msgspec.ValidationError as error:
            memo[key] = data, error
    found = memo[key][1]
    if isinstance(found, msgspec.ValidationError):
        raise msgspec.ValidationError(str(found))
    return found


def _convert_alternative(data: Any, kinds: tuple[Any, ...], memo: _Memo) -> Any:
    """Return the value of the alternative that a discriminator names, or of the best."""
    if data is None and type(None) in kinds:
        return None
    found = discriminator([kind for kind in kinds if kind is not type(None)])
    if found is not None and isinstance(data, dict):
        field, by_value = found
        for value, kind in by_value.items():
            if data.get(field) == value:
                return _convert(data, kind, memo)
        choices = ", ".join(map(repr, by_value))
        raise msgspec.ValidationError(
            f"Invalid value {data.get(field)!r}, use one of {choices}{_AT}.{field}`"
        )
    errors = []
    # The model means the alternative with the fewest unknown fields.
    for kind in sorted(kinds, key=functools.partial(_unknown_fields, data)):
        try:
            return _convert(data, kind, memo)
        except msgspec.ValidationError as error:
            message, path = message_and_path(error)
            errors.append(shortened(f"{message} at {path}" if path else message, _LONGEST_MISFIT))
    raise msgspec.ValidationError(f"It fits none of {len(kinds)} alternatives: {'; '.join(errors)}")


def _unknown_fields(data: Any, kind: Any) -> int:
    if not isinstance(data, dict):
        return 0
    names = property_names(kind)
    return len(data) + 1 if names is None else len(data.keys() - names)


def message_and_path(error: BaseException) -> tuple[str, str]:
    """Return the message of a `ValidationError`, and its path below the root."""
    message, *paths = str(error).split(_AT)
    return message, "".join(path.rstrip("`") for path in reversed(paths))


def from_plain(kind: Any, value: Any) -> Any:
    """Return a pydantic model made from a model's arguments."""
    if not is_pydantic(kind):
        raise TypeError(f"a {kind!r} cannot be made from a model's arguments")
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if problems is None:
            raise
        first = problems(include_url=False, include_input=False)[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]]
        path = f"{_AT}{''.join(steps)}`" if steps else ""
        raise ValueError(f"{first['msg']}{path}") from error  # msgspec adds the path to it.
