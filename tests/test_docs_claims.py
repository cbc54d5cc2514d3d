"""The guides do not call something missing that the package has.

A claim is a sentence, a list item, a row of a table or a heading that says that something is not there. A
heading speaks for its section, and a claim that ends in a colon speaks for the list or the table after it.
The names in code of a claim must not be public names of whyloop. A claim that a feature is missing names it
in code, so that this test notices when the feature arrives.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_docs import DOCS, ROOT
from whyloop.cli import COMMANDS

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PUBLIC_MODULES = [
    "whyloop",
    *(
        f"whyloop.{name}"
        for name in ("broadcasting", "errors", "events", "models", "server", "stores", "testing")
    ),
]

# A feature that is missing. "A tool that does not exist" is a value, and no feature.
FEATURE = r"not (?:here|available|implemented|supported)\b|\b(?:is|are) planned\b|\bcoming soon\b"
CLAIM = re.compile(
    rf"{FEATURE}|\bnot (?:[\w-]+ ){{0,3}}yet\b|\bno (?:[`\w-]+ ){{1,4}}yet\b"
    r"|(?<!that )(?<!which )\bdoes not exist\b",
    re.IGNORECASE,
)
FEATURE_CLAIM = re.compile(FEATURE, re.IGNORECASE)
KINDS = ((r"#{1,6} ", "heading"), (r"\|", "row"), (r"\s*(?:[-*]|\d+\.) ", "item"))


class Unit(NamedTuple):
    """A heading, a sentence, a list item or a row of a table, with the number of its first line."""

    line: int
    kind: str
    text: str


def units_of(page: str) -> list[Unit]:
    """Return the units of a page, without its fenced blocks."""
    units: list[Unit] = []
    paragraph: list[str] = []
    first, kind, fenced = 0, "", False

    def close() -> None:
        text = " ".join(paragraph)
        sentences = re.split(r"(?<=[.!?])\s+", text) if kind == "prose" else [text]
        units.extend(Unit(first, kind, sentence) for sentence in sentences if sentence)
        paragraph.clear()

    for number, line in enumerate(page.splitlines(), start=1):
        fence = line.startswith("```")
        opens = next((name for mark, name in KINDS if re.match(mark, line)), None)
        if fence or fenced or opens or not line.strip():
            close()
            kind = ""
        fenced ^= fence
        if fence or fenced or not line.strip():
            continue
        if not paragraph:
            first, kind = number, opens or "prose"
        paragraph.append(line.strip())
    close()
    return units


def claims_of(page: str) -> Iterator[Unit]:
    """Yield each claim of a page that something is missing, with everything that it speaks for."""
    units = units_of(page)
    for index, unit in enumerate(units):
        if CLAIM.search(unit.text):
            scope = takewhile(partial(_speaks_for, unit), units[index + 1 :])
            yield unit._replace(text="\n".join([unit.text, *(other.text for other in scope)]))


def _speaks_for(claim: Unit, other: Unit) -> bool:
    if claim.kind == "heading":
        return other.kind != "heading" or _level(other) > _level(claim)
    return claim.text.endswith(":") and other.kind in ("row", "item")


def _level(heading: Unit) -> int:
    return len(heading.text.split(" ")[0])


def names_in(text: str) -> set[str]:
    """Return the Python names, keywords and commands in the code of a text."""
    names: set[str] = set()
    for code in re.findall(r"`([^`]+)`", text):
        if re.search(r"::|->|\$|\\", code):  # PHP
            continue
        if command := re.match(r"whyloop ([a-z-]+)", code):
            names.add(command[0])
        options = re.findall(r"--[a-z-]+", code)
        keywords = re.findall(r"\b([a-z_]+)=", code)
        name = re.match(r"@?((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)", code)
        if options or keywords:
            names.update(options, keywords)
        elif name and not command:
            names.add(name[2])
    return names


@cache
def public_names() -> frozenset[str]:
    """Return what users can write: modules, names, attributes, keywords, commands and their options."""
    names = set()
    for path in PUBLIC_MODULES:
        module = importlib.import_module(path)
        names.add(path.rpartition(".")[2])
        exported = getattr(module, "__all__", [name for name in vars(module) if name[0].isupper()])
        for name in exported:
            names.add(name)
            names.update(_names_of(getattr(module, name)))
    commands = argparse.ArgumentParser().add_subparsers()
    for command in COMMANDS:
        command.add_to(commands)
    for name, parser in commands.choices.items():
        names.add(f"whyloop {name}")
        names.update(re.findall(r"--[a-z-]+", parser.format_help()))
    return frozenset(names)


def _names_of(value: object) -> set[str]:
    names: set[str] = set()
    callables = [value]
    if inspect.isclass(value):
        names.update(name for name in dir(value) if name[0] != "_")
        callables += [getattr(value, name) for name in names]
    for function in filter(callable, callables):
        try:
            names.update(inspect.signature(function).parameters)
        except ValueError:  # A builtin has no signature.
            continue
    return names


def false_claims(page: str) -> list[str]:
    """Return what is wrong with the claims of a page, each with its line."""
    problems = []
    for claim in claims_of(page):
        names = names_in(claim.text)
        problems += [f"{claim.line}: `{name}` exists" for name in sorted(names & public_names())]
        if FEATURE_CLAIM.search(claim.text) and "`" not in claim.text:
            problems.append(f"{claim.line}: name in code what is missing: {claim.text}")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_guide_calls_something_missing_that_the_package_has(page: Path) -> None:
    assert false_claims(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("`SlimAgentStateSerializer` is not here yet.", "1: `SlimAgentStateSerializer` exists"),
        ("There is no `EventFeed` yet.", "1: `EventFeed` exists"),
        ("A session cannot wait:\n`needs_approval` does not\nexist.", "1: `needs_approval` exists"),
        ("A limit by `Agent(max_tokens=…)` is planned.", "1: `max_tokens` exists"),
        ("`whyloop serve` is not yet written.", "1: `whyloop serve` exists"),
        ("Filters by `whyloop sessions --rule RULE` are not supported.", "1: `--rule` exists"),
        ("`session.request_stop(reason)` is not implemented.", "1: `request_stop` exists"),
        (
            "## Not here yet\n\n| PHP | here |\n|---|---|\n| `BroadcastConfig` | later |",
            "1: `BroadcastConfig` exists",
        ),
        ("Some things are not here yet:\n\n- `Session`\n- `Handoff`", "1: `Session` exists"),
        ("Broadcasting is not available.", "1: name in code what is missing: Broadcasting is not available."),
    ],
)
def test_a_false_claim_is_found(page: str, problem: str) -> None:
    assert problem in false_claims(page)


@pytest.mark.parametrize(
    "page",
    [
        "`Handoff` is not here yet.",
        "`Agent` is here. Its `Handoff` is not available.",
        "`Agent(handoffs=…)` is not available.",
        "A call of a tool that does not exist is a `ValidationFailure` for `ErrorPolicy`.",
        "```python\nprint('`Agent` is not here yet')\n```",
        "## Not here yet\n\n`Handoff`\n\n## Here\n\n`Agent`",
        "| `AgentBuilder::onBuild(…)` | not available |",
    ],
)
def test_a_true_claim_passes(page: str) -> None:
    assert false_claims(page) == []


def _code_lines(path: Path) -> int:
    """Return the number of lines with code: no docstrings, comments or empty lines."""
    source = path.read_text(encoding="utf-8")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def test_the_size_of_the_adapter_to_temporal_is_the_one_in_its_guide() -> None:
    files = {path.stem: _code_lines(path) for path in (ROOT / "src/whyloop/temporal").glob("*.py")}
    text = " ".join((DOCS / "temporal/index.md").read_text(encoding="utf-8").split())
    core_of = "The workflow, its turns, its runs and its world"
    found = re.search(rf"about ([\d,]+) lines of code .* {core_of} are (\d+) of them", text)
    assert found is not None
    whole, core = [int(number.replace(",", "")) for number in found.groups()]
    assert sum(files.values()) == pytest.approx(whole, rel=0.05)
    counted = sum(files[name] for name in ("workflow", "turns", "runs", "world"))
    assert counted == pytest.approx(core, rel=0.05)
