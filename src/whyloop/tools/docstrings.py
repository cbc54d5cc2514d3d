"""Descriptions in docstrings: of functions and classes, and of their parameters and fields.

The Google, NumPy and Sphinx styles are understood, and for classes a string below a field.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

_PARAMETERS = re.compile(r"^(args|arguments|parameters|params|attributes)\s*:?$", re.IGNORECASE)
_SECTION = re.compile(r"^(returns?|yields?|raises|examples?|notes?|see also|warnings?)\s*:?$", re.IGNORECASE)
_UNDERLINE = re.compile(r"^-{3,}$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_FIELD = re.compile(r"^:(?:param|ivar)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_OTHER_FIELD = re.compile(r"^:\w+[^:]*:")


def docstring_of(documented: Any) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and its description of each parameter.

    The styles of Google, NumPy and Sphinx are understood.
    """
    text: list[str] = []
    parameters: dict[str, str] = {}
    for kind, name, line in _pieces((inspect.getdoc(documented) or "").splitlines()):
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


# Classes


def class_description(kind: type) -> str:
    """Return the description in a class docstring, unless it is generated."""
    text = docstring_of(kind)[0] if kind.__doc__ and "__doc__" in vars(kind) else ""
    made_up = text.startswith(f"{kind.__name__}(") and dataclasses.is_dataclass(kind)
    return "" if made_up else text


def field_descriptions(kind: type) -> dict[str, str]:
    """Return field descriptions from the class docstring or strings below fields."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in ("builtins", "msgspec"):
            continue
        if base.__doc__ and "__doc__" in vars(base):
            docs |= docstring_of(base)[1]
        docs |= _strings_below_fields(base)
    return docs


@functools.lru_cache(256)
def _strings_below_fields(kind: type) -> Mapping[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError, ValueError):  # For example, it is not in a file.
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, following in pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[statement.target.id] = inspect.cleandoc(following.value.value)
    return docs
