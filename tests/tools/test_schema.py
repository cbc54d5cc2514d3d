"""The schema of a tool, from the signature and the docstring of a function."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal, Optional

import msgspec
import pydantic
import pytest

from whyloop import tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Address:
    city: str
    zip: str = "00000"


class Partner(msgspec.Struct):
    name: str
    address: Address
    since: date | None = None


class Lead(pydantic.BaseModel):
    name: str
    amount: int = pydantic.Field(ge=1, description="in cents")


class Program(pydantic.BaseModel):
    lead: Lead
    others: list[Lead] = []


class Tree(pydantic.BaseModel):
    children: list[Tree] = []


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    schema = dict(tool(function).spec.parameters)
    assert schema["type"] == "object"
    assert_closed(schema, schema)
    json.dumps(schema, allow_nan=False)
    return schema


def assert_closed(schema: object, root: dict[str, Any]) -> None:
    """Every reference in the schema leads somewhere, from the root."""
    if isinstance(schema, list):
        for item in schema:
            assert_closed(item, root)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            prefix, _, name = schema["$ref"].rpartition("/")
            assert prefix == "#/$defs"
            assert name in root["$defs"]
        assert "$defs" not in schema or schema is root
        for value in schema.values():
            assert_closed(value, root)


def test_parameters_without_a_default_are_required_and_nothing_else_may_be_sent() -> None:
    def search(query: str, limit: int = 10, exact: bool = False) -> None: ...

    schema = schema_of(search)
    assert schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def ping() -> None: ...

    assert schema_of(ping)["properties"] == {}


@pytest.mark.parametrize(
    "note",
    ["the name", msgspec.Meta(description="the name"), pydantic.Field(description="the name")],
    ids=["str", "msgspec", "pydantic"],
)
def test_annotated_descriptions_are_in_the_schema(note: Any) -> None:
    def find(name: Any, other: Any = "x") -> None: ...

    find.__annotations__.update(name=Annotated[str, note], other=Annotated[str, note])
    properties = schema_of(find)["properties"]
    assert properties["name"] == {"type": "string", "description": "the name"}
    assert properties["other"] == {"type": "string", "description": "the name", "default": "x"}


def test_constraints_of_msgspec_are_in_the_schema_and_held() -> None:
    @tool
    def buy(amount: Annotated[int, msgspec.Meta(ge=1, le=9, description="how many")]) -> None: ...

    assert buy.spec.parameters["properties"]["amount"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "how many",
    }
    with pytest.raises(msgspec.ValidationError):
        buy.arguments.parse({"amount": 0})


def test_constraints_of_pydantic_are_in_the_schema_and_held() -> None:
    @tool
    def buy(amount: Annotated[int, pydantic.Field(ge=1, description="how many")]) -> None: ...

    assert buy.spec.parameters["properties"]["amount"]["minimum"] == 1
    with pytest.raises(ValueError, match="amount"):
        buy.arguments.parse({"amount": 0})


def test_a_docstring_describes_parameters_and_an_annotation_has_the_last_word() -> None:
    def search(query: str, limit: Annotated[int, "at most so many"] = 5) -> None:
        """Searches everything.

        Args:
            query: what to look for
            limit: from the docstring
        """

    made = tool(search)
    properties = made.spec.parameters["properties"]
    assert made.description == "Searches everything."
    assert properties["query"]["description"] == "what to look for"
    assert properties["limit"]["description"] == "at most so many"


def test_optional_parameters_may_be_null() -> None:
    def find(a: Optional[int] = None, b: str | None = "x", *, c: int | None) -> None: ...  # noqa: UP045

    schema = schema_of(find)
    null = {"type": "null"}
    assert null in schema["properties"]["a"]["anyOf"]
    assert schema["properties"]["a"]["default"] is None
    assert schema["properties"]["b"]["default"] == "x"
    assert schema["required"] == ["c"]


def test_enums_and_literals_list_their_values() -> None:
    def paint(color: Color, size: Literal["s", "m"] = "s", other: Color = Color.BLUE) -> None: ...

    schema = schema_of(paint)
    assert sorted(schema["$defs"]["Color"]["enum"]) == ["blue", "red"]
    assert sorted(schema["properties"]["size"]["enum"]) == ["m", "s"]
    assert schema["properties"]["other"]["default"] == "blue"


def test_nested_dataclasses_and_structs_are_described() -> None:
    def add(partner: Partner, more: list[Address]) -> None: ...

    definitions = schema_of(add)["$defs"]
    assert definitions["Partner"]["required"] == ["name", "address"]
    assert definitions["Address"]["properties"]["zip"]["default"] == "00000"


@pytest.mark.parametrize("annotation", [Program, list[Program], Program | None, dict[str, Program]], ids=str)
def test_nested_pydantic_models_are_described_from_the_root(annotation: Any) -> None:
    def enroll(program: Any) -> None: ...

    enroll.__annotations__["program"] = annotation
    schema = schema_of(enroll)
    assert schema["$defs"]["Lead"]["properties"]["amount"]["description"] == "in cents"


def test_a_pydantic_model_that_contains_itself_is_described() -> None:
    def plant(tree: Tree) -> None: ...

    assert "Tree" in schema_of(plant)["$defs"]


def test_two_models_of_one_name_are_not_mixed_up() -> None:
    def outer(field: str) -> type[pydantic.BaseModel]:
        inner = pydantic.create_model("Item", **{field: (int, ...)})  # type: ignore[call-overload]
        made: type[pydantic.BaseModel] = pydantic.create_model(f"Holds{field}", item=(inner, ...))
        return made

    def swap(left: Any, right: Any) -> None: ...

    swap.__annotations__.update(left=outer("weight"), right=outer("price"))
    schema = schema_of(swap)
    found = []
    for side in ("left", "right"):
        item = schema["properties"][side]["properties"]["item"]
        if "$ref" in item:
            item = schema["$defs"][item["$ref"].rpartition("/")[2]]
        found.append(list(item["properties"]))
    assert found == [["weight"], ["price"]]


def test_a_tool_may_have_the_name_of_a_type_that_it_takes() -> None:
    def partner(partner: Partner) -> None: ...

    schema = schema_of(partner)
    assert list(schema["properties"]) == ["partner"]
    (definition,) = (d for d in schema["$defs"].values() if d["title"] == "Partner")
    assert definition["required"] == ["name", "address"]


def test_types_of_the_function_around_a_tool_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    @tool
    def use(local: Local) -> None: ...

    @tool(name="other")
    def use_again(local: Local) -> None: ...

    assert use.spec.parameters["$defs"]["Local"]["required"] == ["x"]
    assert use_again.spec.parameters["$defs"]["Local"]["required"] == ["x"]


def test_a_default_that_json_cannot_hold_is_left_out() -> None:
    def find(key: Annotated[Any, "k"] = object(), ratio: float = float("nan")) -> None: ...  # noqa: B008

    properties = schema_of(find)["properties"]
    assert "default" not in properties["key"]
    assert properties["ratio"].get("default") is None


def test_arguments_become_the_types_that_the_function_asked_for() -> None:
    @tool
    def use(
        color: Color,
        partner: Partner,
        lead: Lead,
        when: date,
        maybe: Lead | None = None,
        many: list[Lead] = [],  # noqa: B006
    ) -> None: ...

    parsed = use.arguments.parse(
        {
            "color": "red",
            "partner": {"name": "x", "address": {"city": "Bonn"}},
            "lead": {"name": "y", "amount": 5},
            "when": "2026-01-16",
            "many": [{"name": "z", "amount": 6}],
        }
    )
    assert parsed == {
        "color": Color.RED,
        "partner": Partner("x", Address("Bonn")),
        "lead": Lead(name="y", amount=5),
        "when": date(2026, 1, 16),
        "many": [Lead(name="z", amount=6)],
    }


@pytest.mark.parametrize(
    "arguments", [{"lead": {"name": "y", "amount": 0}}, {"lead": {"name": "y"}}, {"lead": 5}]
)
def test_a_pydantic_model_checks_its_own_arguments(arguments: dict[str, Any]) -> None:
    @tool
    def use(lead: Lead) -> None: ...

    with pytest.raises(ValueError, match="lead"):
        use.arguments.parse(arguments)


def test_a_missing_argument_leaves_the_functions_own_default() -> None:
    @tool
    def use(a: int = 1, b: list[int] | None = None) -> None: ...

    assert use.arguments.parse({}) == {}
    assert use.arguments.parse({"b": None}) == {"b": None}
