"""The page about envelopes is generated from their schema and from a run.

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

Look up the fields that a client receives. Every event that leaves the process is sent as an envelope, over
every transport. To send envelopes, see [Broadcasting](broadcasting.md).

This page is generated from the JSON Schema in the package, `envelope_schema()`:

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

- Numbered envelopes (`agent.status`, `agent.step.completed`, `agent.tool.*`, `agent.approval.*`,
  `agent.retry`) are sent under every preset. Their `seq` starts at 1 and increases by one within an
  execution, in any process. They are recorded before they are sent, so two different envelopes never have
  the same number. After a gap, request [the envelopes after](server.md#follow-a-session) the last one
  that you have.
- All other envelopes carry the `seq` of the last numbered one. `agent.step.started` and
  `agent.stream.chunk` are not recorded, so a replay does not have them. `chunk_index` orders chunks.
- If a transport is not sure that an envelope arrived, it sends it again. A client should ignore a number
  that it already has.
- The current execution of a fork has a new id and starts at 1. Earlier executions keep their ids and numbers.
- `data` has the fields below. If a transport had to cut texts to make an envelope fit, it has two more:
  `trimmed` is true, and `trimmed_fields` lists the fields that were cut.
- Text that looks like a credential is `[removed]` from arguments, results, errors, questions and reasons,
  unless the configuration has `redaction=None`. The answer itself is sent as it is.
- Texts come from models, tools and users: treat them as data, never as markup.
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
    for each in reversed(golden()["standard"]):
        if each["event"] in ("agent.tool.started", "agent.approval.requested", "agent.step.completed"):
            examples[each["event"]] = each
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
    yield "| field | type | description |"
    yield "|---|---|---|"
    for name, field in properties.items():
        if name in TRIMMED:
            continue
        kind = _kind(schema, field) + ("" if name in required else ", optional")
        yield f"| `{name}` | {kind} | {_described(schema, field)} |"


def _described(schema: dict[str, Any], field: dict[str, Any]) -> str:
    described = field if "description" in field else schema["$defs"][_name(field)]
    description: str = described["description"]
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


def test_the_page_agrees_with_the_schema() -> None:
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
