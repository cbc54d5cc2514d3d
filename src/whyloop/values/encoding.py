"""Values as plain data (dicts, lists, strings, numbers), and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from whyloop.errors import ConfigurationError, SnapshotError
from whyloop.values.text import clean

T = TypeVar("T")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


# Far more than any honest call needs, and far less than encoders support.
MAX_DEPTH = 100

UNREADABLE = "[cannot be written]"
"""The mark of a value that JSON cannot hold."""


def encode(value: object) -> Any:
    """Return the data that the JSON of a value holds."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=describe))
    except UnicodeEncodeError:
        return _cleaned(msgspec.to_builtins(value, str_keys=True, enc_hook=describe))


def json_text(value: object) -> str:
    """Return the value as JSON, without characters that cannot be encoded."""
    try:
        return msgspec.json.encode(value, enc_hook=describe).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(encode(value)).decode()


def jsonable(entries: Mapping[str, object]) -> dict[str, Any]:
    """Return an application's entries as JSON holds them; refuse other values."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(entries))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"invalid entries: JSON cannot hold them: {error}") from None
    return plain


def comparable(value: object) -> bytes:
    """Return bytes that are equal for equal values, whatever the order of keys."""
    try:
        return msgspec.json.encode(value, enc_hook=describe, order="sorted")
    except (TypeError, ValueError, RecursionError):
        return describe(value).encode("utf-8", "replace")


def decode(data: object, as_type: type[T]) -> T:
    """Return plain data as a value; a `SnapshotError` names the path of a problem."""
    try:
        # The value has exactly what JSON holds, so that it equals the one that is read back.
        plain = msgspec.json.decode(msgspec.json.encode(data))
        return msgspec.convert(plain, as_type)
    except msgspec.ValidationError as error:
        raise snapshot_error(str(error)) from None
    except RecursionError:
        raise SnapshotError("the data is nested too deep") from None
    except (TypeError, ValueError, OverflowError):
        path, problem = _unwritable(data)
        raise SnapshotError(problem, path) from None


def _unwritable(data: Any, path: str = "$") -> tuple[str, str]:
    """Return the path and the problem of the first value that JSON cannot hold."""
    inner: list[tuple[str, Any]] = []
    if isinstance(data, Mapping):
        inner = [(f".{key}", part) for key in data for part in (key, data[key])]
    elif isinstance(data, list | tuple):
        inner = [(f"[{index}]", part) for index, part in enumerate(data)]
    for step, part in inner:
        try:
            msgspec.json.decode(msgspec.json.encode(part))
        except (TypeError, ValueError, OverflowError):
            return _unwritable(part, clean(f"{path}{step}"))
    if isinstance(data, str):
        return path, "the text cannot be encoded"
    if isinstance(data, int):
        return path, "the number has too many digits"
    return path, f"JSON cannot hold a value of type {type(data).__name__}"


def copied(source: object, as_type: type[T], **fields: object) -> T:
    """Return a struct with these fields, and the source's values for all others."""
    names = as_type.__struct_fields__  # type: ignore[attr-defined]
    return as_type(**{name: fields[name] if name in fields else getattr(source, name) for name in names})


def snapshot_error(message: str) -> SnapshotError:
    """Return the error for a message of msgspec, with the path in it."""
    match = _PATH.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    missing = _MISSING.search(what)
    return SnapshotError(what, f"{path}.{missing['field']}" if missing else path)


def _cleaned(data: Any) -> Any:
    """Return plain data whose texts can all be encoded."""
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {clean(key): _cleaned(value) for key, value in data.items()}
    return [_cleaned(item) for item in data] if isinstance(data, list | tuple) else data


def describe(value: object, longest: int = 1000) -> str:
    """Return the beginning of a value's `repr`, for JSON; it never fails."""
    try:
        return clean(repr(value)[:longest])
    except Exception:
        return f"<{type(value).__name__}>"[:longest]


def encode_or_describe(value: object) -> Any:
    """Return the data of a value, or else its `repr`, so that an observer never fails."""
    try:
        return encode(value)
    except Exception:
        return describe(value)


def is_too_deep(data: object) -> bool:
    """Return whether data is nested deeper than an encoder may be able to take."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def plain_data(value: Any) -> Any:
    """Return a value as plain data with its secrets, or marked if JSON cannot hold it."""
    if isinstance(value, Mapping):
        parts = {str(key): encode_or_mark(inner) for key, inner in value.items()}
        return {key: UNREADABLE if is_too_deep(part) else part for key, part in parts.items()}
    data = value if isinstance(value, str) else encode_or_mark(value)
    return UNREADABLE if is_too_deep(data) else data


def encode_or_mark(value: Any) -> Any:
    """Return the data of a value, or a mark if JSON cannot hold it."""
    try:
        return encode(value)
    except Exception:  # A snapshot can be written with any metadata.
        return UNREADABLE


def with_short_texts(data: Any, longest: int) -> Any:
    """Return plain data in which every text is at most this long."""
    if isinstance(data, str):
        return data if len(data) <= longest else data[: longest - 1] + "…"
    if isinstance(data, dict):
        return {key: with_short_texts(value, longest) for key, value in data.items()}
    return [with_short_texts(item, longest) for item in data] if isinstance(data, list) else data
