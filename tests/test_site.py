"""The documentation site: it builds without a warning, needs no other host, and explains every name."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import griffe
import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
EXTENSION = DOCS / "site/reference.py"
MODULES = [
    *("", ".errors", ".events", ".models", ".stores", ".testing", ".broadcasting", ".server", ".replay"),
    *(".imports", ".temporal", ".testing.engine_conformance"),
]


def public_names() -> list[str]:
    """Return every public name, as users import it, without those that only name another one again."""
    names: dict[int, str] = {}
    for module in [importlib.import_module(f"whyloop{name}") for name in MODULES]:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        for name in getattr(module, "__all__", classes):
            if isinstance(value := getattr(module, name), type | FunctionType):  # Not a constant.
                names.setdefault(id(value), f"{module.__name__}.{name}")
    return sorted(names.values())


def extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whyloop_site_reference", EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def package() -> Any:
    """Return the package as the reference reads it."""
    extensions = griffe.load_extensions(str(EXTENSION))
    return griffe.load("whyloop", search_paths=[ROOT / "src"], extensions=extensions)


def described(name: str) -> Any:
    value = importlib.import_module(name.rpartition(".")[0]).__dict__.get(name.rpartition(".")[2])
    value = value or getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
    return package()[f"{value.__module__}.{value.__qualname__}".removeprefix("whyloop.")]


def members_of(cls: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class and its constructor, inherited ones of whyloop too."""
    for name, member in cls.all_members.items():
        found = member.final_target if member.is_alias else member
        if name == "__init__" or name[0] != "_":
            yield name, found


def unexplained(name: str) -> list[str]:
    """Return what the reference would show without a meaning: members without a sentence, and parameters."""
    entry, reference = described(name), extension()
    missing = [] if entry.docstring else [name]
    members = list(members_of(entry)) if entry.is_class else [("", entry)]
    fields = {key for key, member in members if member.is_attribute and member.docstring}
    of_class = {p for key, each in members if key == "__init__" for p in reference.explained(each)}
    if entry.is_class and entry.docstring:
        of_class |= reference.explained_in(entry.docstring)
    for key, member in members:
        path = f"{name}.{key}".rstrip(".")
        if key != "__init__" and not member.docstring and key not in of_class:
            missing.append(path)
        if member.is_function:
            known = of_class | fields if key == "__init__" else reference.explained(member)
            missing += [f"{path}({p})" for p in reference.parameters_of(member) if p not in known]
    return missing


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_and_parameter_is_explained(name: str) -> None:
    assert unexplained(name) == [], "explain it in the docstring, under Args: or after the field"


def test_the_reference_has_every_public_name_once() -> None:
    pages = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md"))]
    listed = [name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)]
    assert sorted(listed) == public_names()


def test_an_attribute_is_shown_with_its_type_and_without_the_code_of_its_constructor() -> None:
    name = described("whyloop.Tool").all_members["name"]
    assert (str(name.annotation), name.value, name.labels) == ("str", None, set())
    assert str(described("whyloop.StopReason").members["COMPLETED"].value) == "'completed'"


def test_a_method_that_waits_for_another_has_its_signature() -> None:
    waiting, awaited = (
        described("whyloop.SyncStore").members["load"],
        described("whyloop.stores.Store").members["load"],
    )
    assert [each.name for each in waiting.parameters] == [each.name for each in awaited.parameters]
    assert waiting.docstring.value.startswith(awaited.docstring.value.splitlines()[0])


def test_the_navigation_has_every_page_once() -> None:
    navigation = CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md\b", navigation)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_other_host(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(CONFIG, tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "arning" not in built.stdout + built.stderr
    pages = sorted((tmp_path / "build/site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?(\w+:)?//", html)
        loaded += re.findall(r"<link\b(?![^>]*rel=\"?canonical)[^>]*\bhref=\"?(?:https?:)?//[^>]*>", html)
        assert loaded == [], page.name
