"""The guides: every snippet runs and prints what the page shows, and every link has a target.

The python blocks of a page run in order in one namespace, with `await` allowed at the top level. A js block
is a module of its own. A text block right after a python, console or js block is what that block prints.
A block with a title, such as ```python title="desk.py", is a file that the blocks after it use.
WHYLOOP_UPDATE_DOCS=1 writes those text blocks again instead of comparing them; read the diff before you keep
it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import difflib
import importlib
import inspect
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from msgspec.structs import replace

import whyloop
import whyloop.errors
import whyloop.events
import whyloop.testing
from tests.models.faulty_server import FaultyServer, chat_answer, chat_call, in_a_thread, say
from tests.real.temporal import NoTemporalError, TemporalServer
from whyloop.models.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(page for name in ("README.md", "CONTRIBUTING.md") if (page := ROOT / name).exists()),
    *sorted(DOCS.rglob("*.md")),
]
LANGUAGES = {"python", "text", "console", "js", "toml", "json", "html", "php"}
NODE = shutil.which("node")
TEMPORAL_ADDRESS = "127.0.0.1:7233"
UPDATE = bool(os.environ.get("WHYLOOP_UPDATE_DOCS"))

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


class Block(NamedTuple):
    """A fenced block; `line` is that of its first line of code, counted from one."""

    language: str
    line: int
    source: str
    follows: bool
    """True if only blank lines are between this block and the one before it."""
    title: str | None
    """The name of the file that the block is."""


def blocks_of(page: Path) -> list[Block]:
    blocks: list[Block] = []
    opened: tuple[str, int] | None = None
    only_blanks = False
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.startswith("```"):
            if opened is None:
                opened = (line[3:].strip(), number + 1)
                continue
            info, first = opened
            language, _, rest = info.partition(" ")
            title = re.fullmatch(r'title="([\w.-]+)"', rest)
            assert title or not rest, f"{page}:{first}: {rest!r} is not a title"
            source = "\n".join(lines[first - 1 : number - 1])
            blocks.append(Block(language, first, source, only_blanks, title and title[1]))
            opened, only_blanks = None, True
        elif opened is None:
            assert "```" not in line, f"{page}:{number}: a fence starts at the beginning of its line"
            only_blanks = only_blanks and not line.strip()
    assert opened is None, f"{page}: the block at line {opened and opened[1]} is never closed"
    return blocks


def outside_blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose of a page, numbered."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


# Snippets


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A provider for the first agent of the README: its model searches, and then answers."""
    model = FaultyServer(say(chat_call("search", '{"name": "A"}')), say(chat_answer("Acme and Apex.")))
    with in_a_thread(model):
        monkeypatch.setitem(PRESETS, "openai", replace(PRESETS["openai"], base_url=model.base_url))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield


@pytest.fixture(scope="module")
def temporal() -> Iterator[TemporalServer]:
    """A Temporal server for the pages that connect to one."""
    try:
        server = TemporalServer()
    except NoTemporalError as error:
        pytest.skip(str(error))
    server.start()
    asyncio.run(server.connect())
    yield server
    server.remove()


def with_server(blocks: list[Block], request: pytest.FixtureRequest) -> list[Block]:
    """Return the blocks with the address of a server in the place of Temporal's usual address."""
    code = [block.language == "python" and TEMPORAL_ADDRESS in block.source for block in blocks]
    if not any(code):
        return blocks
    address = request.getfixturevalue("temporal").address
    return [block._replace(source=block.source.replace(TEMPORAL_ADDRESS, address)) for block in blocks]


@pytest.mark.usefixtures("provider")
@each_page
def test_snippets(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    blocks = with_server(blocks_of(page), request)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # A chat on a page has no input.
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # A file may change within a second.
    printed: str | None = None
    outputs: list[tuple[Block, str]] = []
    with asyncio.Runner() as runner:
        for block in blocks:
            where = f"{page}:{block.line}"
            match block.language:
                case language if block.title is not None:
                    assert language in LANGUAGES, f"{where}: a block of {language}"
                    write_file(block, tmp_path)
                    printed = None
                case "python":
                    printed = run_python(block, page, module, runner)
                case "console":
                    printed = run_console(block, where)
                case "js" if NODE is not None:
                    printed = run_javascript(block, where, tmp_path)
                case "text" if block.follows and printed is not None:
                    if UPDATE:
                        outputs.append((block, printed))
                    else:
                        compare(page, block, printed)
                    printed = None
                case language:
                    assert language in LANGUAGES, f"{where}: a block of {language or 'no language'}"
                    printed = None
    if outputs:
        rewrite(page, outputs)


def write_file(block: Block, folder: Path) -> None:
    """Write a file of the page; a module that has changed is imported anew."""
    assert block.title is not None
    (folder / block.title).write_text(block.source + "\n", encoding="utf-8")
    sys.modules.pop(block.title.removesuffix(".py"), None)
    importlib.invalidate_caches()


def run_python(block: Block, page: Path, module: ModuleType, runner: asyncio.Runner) -> str:
    """Return what the block prints; its lines keep the numbers that they have on the page."""
    source = "\n" * (block.line - 1) + block.source
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = eval(code, module.__dict__)
        if inspect.iscoroutine(result):
            runner.run(result)
    return out.getvalue()


def run_javascript(block: Block, where: str, folder: Path) -> str:
    """Return what the block prints, as a module of its own that can import `whyloop-ui`."""
    package = folder / "node_modules/whyloop-ui"
    if not package.exists():
        shutil.copytree(Path(whyloop.__file__).parent / "ui", package)
    (folder / "snippet.mjs").write_text(block.source, encoding="utf-8")
    command = [str(NODE), "snippet.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert done.returncode == 0, f"{where}: {done.stderr}"
    return done.stdout


def run_console(block: Block, where: str) -> str:
    """Return what the `$ whyloop …` lines print; of the other commands only the names are checked."""
    out = io.StringIO()
    for line in block.source.splitlines():
        if not line.startswith("$ "):
            continue
        program, *arguments = shlex.split(line[2:], comments=True)
        match program:
            case "whyloop":
                from whyloop.cli import main

                with contextlib.redirect_stdout(out):
                    status = main(arguments)
                assert not status, f"{where}: {line[2:]!r} ended with {status}"
            case "make":
                targets = re.findall(
                    r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
                )
                wanted = [argument for argument in arguments if "=" not in argument]
                assert set(wanted) <= set(targets), f"{where}: the Makefile has only {targets}"
            case "python" if arguments and Path(arguments[0]).is_file():
                with contextlib.redirect_stdout(out):
                    runpy.run_path(arguments[0], run_name="__main__")
            case "python" | ".venv/bin/python" if arguments and arguments[0].endswith(".py"):
                assert (ROOT / arguments[0]).is_file(), f"{where}: there is no {arguments[0]}"
            case "pip" | "git" | "cd" | "python" | "source":
                pass
            case _:
                assert program.startswith(".venv/bin/"), (
                    f"{where}: {program!r} is not checked: use another command"
                )
    return out.getvalue()


def compare(page: Path, block: Block, printed: str) -> None:
    expected, actual = trimmed(block.source), trimmed(printed)
    difference = "\n".join(difflib.unified_diff(expected, actual, "on the page", "printed", lineterm=""))
    if difference:
        text = f"{page}:{block.line}: the snippet above prints something else\n{difference}"
        pytest.fail(text, pytrace=False)


def rewrite(page: Path, outputs: list[tuple[Block, str]]) -> None:
    """Write outputs into the text blocks, from the last to the first, so that the others keep their lines."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block, printed in reversed(outputs):
        lines[block.line - 1 : lines.index("```", block.line - 1)] = trimmed(printed)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def trimmed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# Links


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the common renderers make them."""
    anchors: set[str] = set()
    for _, line in outside_blocks(page):
        if match := re.match(r"#{1,6}\s+(.*)", line):
            anchor = slug(match[1])
            anchors.add(anchor if anchor not in anchors else f"{anchor}-1")
    return anchors


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links_of(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in outside_blocks(page):
        prose = re.sub(r"`[^`]*`", "", line)
        for target in re.findall(r"\]\(([^)\s]+)[^)]*\)|(?:href|src|srcset)=\"([^\"]+)\"", prose):
            yield number, target[0] or target[1]


@each_page
def test_links(page: Path) -> None:
    for number, target in links_of(page):
        own_file = re.match(r"https://github\.com/whyloop/whyloop/(?:blob|tree)/main/(.+)", target)
        if re.match(r"[a-z]+:", target) and not own_file:
            continue
        path, _, anchor = (str(ROOT / own_file[1]) if own_file else target).partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page}:{number}: there is no {target}"
        if anchor:
            assert anchor in anchors_of(linked), f"{page}:{number}: {linked.name} has no heading #{anchor}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = [target.partition("#")[0] for _, target in links_of(page) if "://" not in target]
            waiting += [
                linked for target in targets if (linked := (page.parent / target).resolve()).suffix == ".md"
            ]
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []


# Completeness


def missing_from(text: str, names: list[str]) -> list[str]:
    return [name for name in names if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)]


def test_every_public_name_is_explained_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md")))
    assert missing_from(text, whyloop.__all__) == []


@pytest.mark.parametrize("page", ["troubleshooting.md", "concepts/outcome.md"])
def test_every_stop_reason_is_explained(page: str) -> None:
    from whyloop import StopReason

    assert (
        missing_from((DOCS / page).read_text(encoding="utf-8"), [reason.value for reason in StopReason]) == []
    )


def test_the_table_of_events_has_every_event_with_all_its_fields() -> None:
    rows = [
        line
        for line in (DOCS / "concepts/events.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    common = whyloop.events.AgentEvent.__struct_fields__
    for name in whyloop.events.__all__:
        fields = getattr(whyloop.events, name).__struct_fields__
        own = fields if name == "AgentEvent" else fields[len(common) :]
        (row,) = [row for row in rows if re.match(rf"\| `{name}` ", row)]
        assert missing_from(row, list(own)) == [], row


def test_every_exception_is_explained() -> None:
    names = [name for name, value in vars(whyloop.errors).items() if inspect.isclass(value)]
    assert missing_from((DOCS / "concepts/errors.md").read_text(encoding="utf-8"), names) == []


def test_every_helper_for_tests_is_explained() -> None:
    assert (
        missing_from((DOCS / "concepts/testing.md").read_text(encoding="utf-8"), whyloop.testing.__all__)
        == []
    )


def sections_of(page: Path) -> dict[str, str]:
    """Return the text under each heading of a page, up to the next one, by its anchor."""
    inside, anchor, sections = False, "", {"": ""}
    for line in page.read_text(encoding="utf-8").splitlines():
        if not inside and (match := re.match(r"#{1,6}\s+(.*)", line)):
            anchor = slug(match[1])
            sections[anchor] = ""
        inside ^= line.startswith("```")
        sections[anchor] += f"{line}\n"
    return sections


def test_every_difference_from_instructorphp_has_code_before_and_after() -> None:
    sections = sections_of(DOCS / "migration/from-instructorphp.md")
    tables = sections["what-behaves-differently"] + sections["from-2x"]
    rows = [row for row in tables.splitlines() if row.startswith("| [")]
    anchors = {match[1] for row in rows if (match := re.match(r"\| \[.*?\]\(#([\w-]+)\) \|", row))}
    differences = {name: text for name, text in sections.items() if name in anchors}
    assert len(rows) > 20
    assert anchors == set(differences)
    without = [
        name for name, text in differences.items() if not re.search(r"```php.*```python", text, re.DOTALL)
    ]
    assert without == []


def test_the_code_map_has_a_line_for_every_file_of_the_loop() -> None:
    files = sorted(path.name for path in (ROOT / "src/whyloop/loop").glob("*.py") if path.name[0] != "_")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### The loop, file by file")[2]
    assert sorted(re.findall(r"^\| `(\w+\.py)` \|", text, re.MULTILINE)) == files


def test_the_code_map_names_only_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|(.*)$", text, re.MULTILINE)
    named = [(folder, name) for folder, row in rows for name in re.findall(r"`([\w/]+\.(?:py|js))`", row)]
    assert len(named) > 50
    source = ROOT / "src/whyloop"
    assert [
        each for each in named if not any((start / each[1]).exists() for start in (source, source / each[0]))
    ] == []
