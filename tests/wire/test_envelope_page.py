"""The page about envelopes is written from their schema and from a run.

`python -m tests.wire.test_envelope_page` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.test_docs import DOCS
from tests.wire.test_envelope_golden import golden
from whyloop.broadcasting import envelope_schema

PAGE = DOCS / "envelope.md"
HEAD = """# The envelope

Here is everything that a run says to those who watch it, field by field: one envelope for all events,
whatever the transport. This page is written from the schema in the package, `envelope_schema()`.
How envelopes are sent is on the page about [broadcasting](broadcasting.md).

```python
from whyloop.broadcasting import envelope_schema

print(envelope_schema()["title"])
```
```text
An event of an agent, as it leaves the process
```
"""
TRIMMED = ("trimmed", "trimmed_fields")
SEEN_FROM_A_CLIENT = """## What a client can rely on

- **Numbered envelopes** are `agent.status`, `agent.step.completed`, `agent.tool.*`, `agent.approval.*` and
  `agent.retry`, with every preset. Their `seq` starts at 1 and increases by one within an execution, also
  after a crash or a resume in another process. They are recorded before they are sent. If a number is
  missing, request [the envelopes after](server.md#following-a-session) the last one that you have, or the
  history.
- Two numbered envelopes of one execution with the same `seq` are the same: ignore the second. A transport
  sends an envelope again if it is not sure that it arrived.
- **All other envelopes** are best effort. They carry the `seq` of the last numbered one, and cannot be
  requested again. `chunk_index` orders the chunks of a step: some may be missing, and some may arrive twice.
  A chunk whose `seq` is not that of the last numbered envelope belongs to another step.
- `kind` of a chunk is `text` or `reasoning`. Reasoning is not part of the answer.
- What a version has stays as it is. Another version has another `v`.
- `data` has the fields below, and two more where a transport had to cut texts to make an envelope fit:
  `trimmed` is true, and `trimmed_fields` lists the fields that were cut.
- What looks like a credential is `[removed]` from arguments, results, errors and what rules said, unless
  the configuration has `redact=False`. The answer itself is told as it is.
- Texts come from models, tools and users: they are data, and never markup.
"""


def page() -> str:
    schema = envelope_schema()
    return "\n".join(_lines(schema)) + "\n"


def _lines(schema: dict[str, Any]) -> Iterator[str]:
    yield HEAD
    yield from _table(schema, schema["properties"], schema["required"])
    yield ""
    yield SEEN_FROM_A_CLIENT
    yield "## Events"
    examples = {each["event"]: each for each in golden()["debug"]}
    examples["agent.tool.started"] = next(
        each for each in golden()["standard"] if each["event"] == "agent.tool.started"
    )
    for name in schema["properties"]["event"]["enum"]:
        definition = schema["$defs"][name]
        yield f"\n### {name}\n\n{definition['description']}\n"
        yield from _table(schema, definition["properties"], definition["required"])
        yield f"\n```json\n{json.dumps(_short(examples[name]), ensure_ascii=False, indent=1)}\n```"
    yield "\n## Parts\n"
    for name in ("verdict", "evaluation"):
        definition = schema["$defs"][name]
        yield f"### {name}\n\n{definition['description']}\n"
        yield from _table(schema, definition["properties"], definition["required"])
        yield ""
    for name in ("status", "stop_reason"):
        definition = schema["$defs"][name]
        yield f"### {name}\n\n{definition['description']} {_values(definition['enum'])}.\n"


def _table(schema: dict[str, Any], properties: dict[str, Any], required: list[str]) -> Iterator[str]:
    yield "| field | | what it says |"
    yield "|---|---|---|"
    for name, field in properties.items():
        if name in TRIMMED:
            continue
        kind = _kind(schema, field) + ("" if name in required else ", optional")
        yield f"| `{name}` | {kind} | {_described(schema, field)} |"


def _described(schema: dict[str, Any], field: dict[str, Any]) -> str:
    told = field if "description" in field else schema["$defs"][_name(field)]
    description: str = told["description"]
    return description


def _kind(schema: dict[str, Any], field: dict[str, Any]) -> str:
    match field:
        case {"$ref": str()}:
            return f"[{_name(field)}](#{_name(field)})"
        case {"const": value}:
            return f"`{json.dumps(value)}`"
        case {"enum": values}:
            return _values(values)
        case {"type": "array", "items": items}:
            return f"list of {_kind(schema, items)}"
        case {"type": "object", "properties": inner}:
            return "object of " + ", ".join(f"`{name}`" for name in inner)
        case {"type": [first, second]}:
            return f"{first} or {second}"
    return str(field["type"])


def _name(field: dict[str, Any]) -> str:
    return str(field["$ref"]).removeprefix("#/$defs/")


def _values(values: list[str | None]) -> str:
    return ", ".join("null" if value is None else f"`{value}`" for value in values)


def _short(envelope: dict[str, Any]) -> dict[str, Any]:
    """An example with two of its evaluations, which is enough to see what they are like."""
    evaluations = envelope["data"].get("evaluations")
    if evaluations is None:
        return envelope
    return {**envelope, "data": {**envelope["data"], "evaluations": evaluations[:2]}}


def test_the_page_says_what_the_schema_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.wire.test_envelope_page"


def test_every_field_is_explained() -> None:
    def undescribed(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            for name, field in schema.get("properties", {}).items():
                if "description" not in field and "$ref" not in field and "const" not in field:
                    yield name
            for value in schema.values():
                yield from undescribed(value)

    assert list(undescribed({**envelope_schema(), "oneOf": []})) == []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
