"""A value fits its schema, or the path of the misfit is reported."""

from __future__ import annotations

from typing import Any

import pytest

from whyloop.tools.schema import problem_with

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "kind": {"enum": ["a", "b"]},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
        "home": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["street"]}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"friend": {"type": "object", "properties": {"name": {"const": "Ann"}}}},
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "x"},
        {"name": "x", "age": 3, "kind": "a", "friends": [{"name": "Ann"}], "home": {"street": 1}},
        {"name": "x", "age": None, "home": None, "friends": []},
        {"name": "x", "age": 3.0},
    ],
)
def test_a_value_that_fits_has_no_problem(value: Any) -> None:
    assert problem_with(value, PERSON) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "$ is array instead of object"),
        ({}, "$.name is missing"),
        ({"name": 1}, "$.name is number instead of string"),
        ({"name": "x", "age": "3"}, "$.age is string instead of integer or null"),
        ({"name": "x", "age": True}, "$.age is boolean instead of integer or null"),
        ({"name": "x", "kind": "c"}, "$.kind is none of its 2 values"),
        ({"name": "x", "more": 1}, "$.more is not in the schema"),
        ({"name": "x", "friends": [{}, {"name": "Bob"}]}, "$.friends[1].name is not its one value"),
        ({"name": "x", "home": {}}, "$.home fits none of its 2 alternatives"),
    ],
)
def test_a_misfit_is_reported_with_its_path(value: Any, words: str) -> None:
    assert problem_with(value, PERSON) == words


def test_an_empty_schema_fits_everything() -> None:
    assert problem_with({"a": [1, None]}, {}) is None
    assert problem_with(1, {"allOf": [{"type": "integer"}, {"type": "string"}]}) is not None
