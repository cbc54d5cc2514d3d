"""The JSON schemas of types: descriptions, formats, unions, literals; and values made from JSON."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from whyloop import tool
from whyloop.tools.conversion import convert, message_and_path, to_plain
from whyloop.tools.schema import problems_with
from whyloop.tools.types import schema_of


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"
    AVERAGE = "average"


@dataclass
class Address:
    """Where somebody lives.

    Attributes:
        city: The name of the city.
    """

    city: str
    street: str = ""
    """The street, with the number."""
    country: Annotated[str, "As two letters."] = "DE"


@dataclass
class Cat:
    kind: Literal["cat"]
    lives: int


@dataclass
class Dog:
    kind: Literal["dog"]
    tricks: list[str] = field(default_factory=list)


class Fish(pydantic.BaseModel):
    kind: Literal["fish"]
    depth: float


@dataclass
class Owner:
    name: str
    pets: list[Cat | Dog]
    home: Address | None = None


class Options(TypedDict):
    """Options of a search."""

    limit: int
    """How many results."""
    exact: NotRequired[bool]


class Box(msgspec.Struct):
    wide: Annotated[int, msgspec.Meta(gt=0)]
    """The width in cm."""
    level: Level = Level.LOW


def test_fields_are_described_by_docstring_string_or_annotation() -> None:
    properties = schema_of(Address)["properties"]
    assert {name: each["description"] for name, each in properties.items()} == {
        "city": "The name of the city.",
        "street": "The street, with the number.",
        "country": "As two letters.",
    }
    assert schema_of(Address)["description"] == "Where somebody lives."


def test_fields_of_nested_classes_are_described_too() -> None:
    def move(person: Owner, options: Options, box: Box) -> None: ...

    definitions = tool(move).spec.parameters["$defs"]
    assert definitions["Address"]["properties"]["city"]["description"] == "The name of the city."
    assert definitions["Options"]["properties"]["limit"]["description"] == "How many results."
    assert definitions["Options"]["required"] == ["limit"]
    assert definitions["Box"]["properties"]["wide"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "The width in cm.",
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (datetime, "date-time"),
        (date, "date"),
        (time, "time"),
        (timedelta, "duration"),
        (UUID, "uuid"),
        (Decimal, "decimal"),
    ],
)
def test_times_and_the_like_have_a_format(kind: Any, name: str) -> None:
    assert schema_of(kind) == {"type": "string", "format": name}
    assert schema_of(list[kind])["items"] == {"type": "string", "format": name}


def test_literals_and_enums_keep_the_order_of_their_declaration() -> None:
    assert schema_of(Literal["z", "a", "m"])["enum"] == ["z", "a", "m"]
    assert schema_of(Literal[3, 1, None])["enum"] == [3, 1, None]
    assert schema_of(Level)["enum"] == ["low", "high", "average"]


def test_a_union_of_classes_names_its_discriminator() -> None:
    schema = schema_of(Owner)
    assert schema["properties"]["pets"]["items"] == {
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {
            "propertyName": "kind",
            "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
        },
    }


def test_a_union_inside_a_class_becomes_the_class_that_is_named() -> None:
    data = {"name": "Ada", "pets": [{"kind": "dog", "tricks": ["sit"]}, {"kind": "cat", "lives": 9}]}
    value = convert(data, Owner)
    assert value == Owner("Ada", [Dog("dog", ["sit"]), Cat("cat", 9)])
    assert convert(to_plain(value), Owner) == value


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"name": "A", "pets": [{"kind": "cow"}]}, ".pets[0].kind", "use one of 'cat', 'dog'"),
        ({"name": "A", "pets": [{"kind": "cat", "lives": "x"}]}, ".pets[0].lives", "Expected `int`"),
        ({"name": "A", "pets": [{"kind": "cat"}]}, ".pets[0]", "missing required field `lives`"),
        ({"pets": []}, "", "missing required field `name`"),
        ({"name": "A", "pets": {}}, ".pets", "Expected `array`"),
        ([], "", "Expected `object`"),
    ],
)
def test_a_misfit_inside_a_union_names_its_path(data: Any, path: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        convert(data, Owner)
    text, found = message_and_path(caught.value)
    assert found == path
    assert message in text


def test_a_union_with_a_pydantic_model_has_a_discriminator_too() -> None:
    kind = Cat | Fish
    assert convert({"kind": "fish", "depth": 2}, kind) == Fish(kind="fish", depth=2)
    assert convert({"kind": "cat", "lives": 2}, kind) == Cat("cat", 2)
    with pytest.raises(msgspec.ValidationError, match=r"greater|valid number") as caught:
        convert([{"kind": "fish", "depth": "deep"}], list[kind])
    assert message_and_path(caught.value)[1] == "[0].depth"


def test_without_a_literal_the_class_with_the_fewest_unknown_fields_is_meant() -> None:
    kind = Address | Box
    assert convert({"wide": 2}, kind) == Box(2)
    assert convert({"city": "Rome"}, kind) == Address("Rome")
    with pytest.raises(msgspec.ValidationError, match="none of 2 alternatives"):
        convert({"x": 1}, kind)


def test_a_tool_takes_a_union_of_classes() -> None:
    @tool
    def feed(pet: Cat | Dog, others: list[Cat | Dog] | None = None, amount: int = 1) -> str:
        return type(pet).__name__

    parsed = feed.arguments.parse({"pet": {"kind": "dog"}, "others": [{"kind": "cat", "lives": 1}]})
    assert parsed == {"pet": Dog("dog"), "others": [Cat("cat", 1)]}
    with pytest.raises(msgspec.ValidationError, match="use one of"):
        feed.arguments.parse({"pet": {"kind": "cow"}})
    with pytest.raises(msgspec.ValidationError, match="pet is missing"):
        feed.arguments.parse({})
    with pytest.raises(msgspec.ValidationError, match="no argument 'x'"):
        feed.arguments.parse({"pet": {"kind": "dog"}, "x": 1})


def test_two_classes_of_one_name_are_kept_apart() -> None:
    def made(**fields: Any) -> Any:
        return dataclass(type("Thing", (), {"__annotations__": fields}))

    definitions = schema_of(tuple[made(a=int), ...] | list[made(b=str)])["$defs"]  # type: ignore[misc]
    assert sorted(definitions) == ["Thing", "Thing_2"]


class Twig(pydantic.BaseModel):
    twigs: list[Twig] = []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (dict[int, str], {"1": "a"}),
        (list[Twig], [{"twigs": [{}]}]),
        (tuple[Cat | Dog, ...], [{"kind": "cat", "lives": 1}]),
        (dict[str, list[Cat | Dog]], {"a": [{"kind": "dog"}]}),
        (Cat | Dog | None, None),
        (str | list[Cat | Dog], "none"),
        (Annotated[list[Cat | Dog], msgspec.Meta(min_length=1)], [{"kind": "dog"}]),
    ],
)
def test_values_are_made_from_json_and_back(kind: Any, data: Any) -> None:
    value = convert(data, kind)
    assert convert(json.loads(json.dumps(to_plain(value))), kind) == value


def test_bounds_of_a_list_of_a_union_hold() -> None:
    with pytest.raises(msgspec.ValidationError, match="length >= 1"):
        convert([], Annotated[list[Cat | Dog], msgspec.Meta(min_length=1)])


def test_the_schema_of_a_class_that_refers_to_itself_is_an_object() -> None:
    schema = schema_of(Twig)
    assert schema["type"] == "object"
    assert schema["$defs"].keys() == {"Twig"}


@dataclass
class Number:
    value: int


@dataclass
class Sum:
    left: Number | Sum | Product
    right: Number | Sum | Product


@dataclass
class Product:
    left: Number | Sum | Product
    right: Number | Sum | Product
    scale: Literal[1, 2]


def nested(depth: int, innermost: Any, **more: Any) -> Any:
    data = innermost
    for _ in range(depth):
        data = {"left": {"value": 1}, "right": data, **more}
    return data


def test_unions_that_nest_are_converted_in_time_and_with_a_short_error() -> None:
    kind = Number | Sum | Product
    value = convert(nested(30, {"value": 1}, scale=2), kind)
    assert to_plain(value) == nested(30, {"value": 1}, scale=2)
    with pytest.raises(msgspec.ValidationError) as caught:
        convert(nested(30, {"value": "one"}, scale=2), kind)
    assert len(str(caught.value)) < 1000
    assert list(problems_with(nested(30, {"value": "one"}), schema_of(kind)))


def test_the_path_of_a_misfit_leads_to_the_union() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        convert([{"value": 1}, {"value": "one"}], list[Number | Sum | Product])
    message, path = message_and_path(caught.value)
    assert path == "[1]"
    assert "Expected `int`, got `str` at .value" in message


class Card(pydantic.BaseModel):
    by: Literal["card"] = pydantic.Field(alias="type")
    number: str


class Cash(pydantic.BaseModel):
    by: Literal["cash"] = pydantic.Field(alias="type")


def test_a_discriminator_may_have_an_alias() -> None:
    assert isinstance(convert({"type": "cash"}, Card | Cash), Cash)
    with pytest.raises(msgspec.ValidationError, match="use one of 'card', 'cash'"):
        convert({"type": "cheque"}, Card | Cash)


class Parcel(msgspec.Struct, forbid_unknown_fields=True):
    pet: Cat | Dog


def test_a_struct_with_a_union_forbids_unknown_fields_too() -> None:
    data = {"pet": {"kind": "dog"}}
    assert convert(data, Parcel) == Parcel(Dog("dog"))
    with pytest.raises(msgspec.ValidationError, match="unknown field `weight`"):
        convert({**data, "weight": 1}, Parcel)
