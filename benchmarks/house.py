"""Measure how easy it is to find your way around the code: `make house`."""

import ast
import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from whyloop import Agent, Session, tool
from whyloop.stores import SqliteStore
from whyloop.testing import ScriptedModel, call

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "whyloop"
JARGON = re.compile(r"\b(?:told|words|came_of|who|whoever|is no)\b")


class Figure(NamedTuple):
    """One line of the table: what was counted, and the most that is wanted."""

    name: str
    value: int
    wanted: int


class Trip:
    """Count the files of the package that calls visit, and the switches between them."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.switches = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, if it is one of the package's own functions."""
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not code.co_filename.startswith(str(SOURCE)):
            return
        self.files.add(code.co_filename)
        self.switches += code.co_filename != self._last
        self._last = code.co_filename


def trip_of(work: Callable[[], Awaitable[object]]) -> Trip:
    """Return the files that a piece of work visits, once everything is imported."""

    async def run() -> Trip:
        await work()
        trip = Trip()
        sys.setprofile(trip)
        try:
            await work()
        finally:
            sys.setprofile(None)
        return trip

    return asyncio.run(run())


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def scripted_agent() -> Agent:
    """Return an agent that calls one tool and then answers."""
    return Agent(ScriptedModel([call("add", {"a": 1, "b": 2}), "3"]), [add])


async def one_run() -> None:
    """Run an agent without a store."""
    await scripted_agent().run("What is 1 + 2?")


async def one_question() -> None:
    """Ask a session in an SQLite store, from opening the store to closing it."""
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(f"{folder}/sessions.db") as store:
            session = await Session.open(store, scripted_agent(), "one", create=True)
            await session.send("What is 1 + 2?")


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports_of(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the modules of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= names or {node.module}
    return found & modules


def figures() -> list[Figure]:
    """Measure the source, and two trips through it."""
    files = sorted(SOURCE.rglob("*.py"))
    texts = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    modules = {module_of(path) for path in files if path.name != "__init__.py"}
    importers = dict.fromkeys(modules, 0)
    for path, tree in trees.items():
        for name in imports_of(tree, modules) - {module_of(path)}:
            importers[name] += 1
    functions = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = [line for text in texts.values() for line in text.splitlines()]
    prose = [*texts.values(), *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))]
    prose += [path.read_text() for path in SOURCE.rglob("*.js")]
    # The contract of a store is one class, and each backend is two modules, so these are longer than others.
    lengths = {path: len(text.splitlines()) for path, text in texts.items()}
    others = [length for path, length in lengths.items() if path.parent.name != "stores"]
    run, question = trip_of(one_run), trip_of(one_question)
    return [
        Figure("Python files", len(files), 150),
        Figure("non-blank lines", sum(bool(line.strip()) for line in lines), 22_700),
        Figure("modules with exactly one importer", sum(count == 1 for count in importers.values()), 40),
        Figure("one run with a tool call: files", len(run.files), 20),
        Figure("one run with a tool call: switches", run.switches, 75),
        Figure("one question on SQLite: files", len(question.files), 32),
        Figure("one question on SQLite: switches", question.switches, 160),
        Figure("unclear words in src and docs", sum(len(JARGON.findall(text)) for text in prose), 60),
        Figure("longest function, lines", max(functions), 60),
        Figure("longest file, lines", max(lengths.values()), 450),
        Figure("longest file besides stores, lines", max(others), 450),
    ]


def main() -> None:
    """Print the table; a star marks what is over its limit."""
    for name, value, wanted in figures():
        print(f"{name:<38}{value:>8,}   wanted: at most {wanted:,}{'' if value <= wanted else '  *'}")


if __name__ == "__main__":
    main()
