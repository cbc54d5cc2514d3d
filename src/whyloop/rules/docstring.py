"""What a docstring says about a function, and about each of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

_PARAMETERS = re.compile(r"^(args|arguments|parameters|params)\s*:?$", re.IGNORECASE)
_SECTION = re.compile(r"^(returns?|yields?|raises|examples?|notes?|see also|warnings?)\s*:?$", re.IGNORECASE)
_UNDERLINE = re.compile(r"^-{3,}$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_OTHER_FIELD = re.compile(r"^:\w+[^:]*:")


def docstring_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A docstring's text without its sections, and what it says about each parameter.

    The Google, NumPy and Sphinx ways of writing are understood.
    """
    text: list[str] = []
    parameters: dict[str, str] = {}
    for kind, name, words in _pieces((inspect.getdoc(function) or "").splitlines()):
        if kind == "text":
            text.append(words)
        elif kind == "entry":
            parameters[name] = words
        elif kind == "more" and name in parameters:
            parameters[name] = f"{parameters[name]} {words}".strip()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip(), parameters


def _pieces(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each line as a piece of the text, as the entry of a parameter, or as more about one."""
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
    """The parameter that a line of a section begins, and what the line says about it."""
    if numpy:
        match = None if indented else _NUMPY_ENTRY.match(line)
        return (match[1], "") if match else None
    match = _GOOGLE_ENTRY.match(line) if indented else None
    return (match[1], match[2]) if match else None
