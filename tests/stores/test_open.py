"""A store is opened by its address, and the password in an address is never shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from whyloop.errors import ConfigurationError, StoreError
from whyloop.stores import SqliteStore, open_store


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WHYLOOP_STORE", raising=False)


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a PostgreSQL store was asked for."""
    asked: list[str] = []
    module = ModuleType("whyloop.stores.postgres")
    module.PostgresStore = asked.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "whyloop.stores.postgres", module)
    return asked


@pytest.mark.parametrize("address", ["s.db", "./s.db", Path("s.db"), "with space.db", "postgres", "C:s.db"])
async def test_a_path_is_a_sqlite_file(address: str | Path, tmp_path: Path) -> None:
    async with open_store(address) as store:
        assert isinstance(store, SqliteStore)
    assert [path.name for path in tmp_path.iterdir()] == [Path(address).name]


async def test_without_an_address_it_is_a_file_in_this_folder(tmp_path: Path) -> None:
    async with open_store() as store:
        assert isinstance(store, SqliteStore)
    assert [path.name for path in tmp_path.iterdir()] == ["whyloop.db"]


@pytest.mark.parametrize(("variable", "name"), [("other.db", "other.db"), ("", "whyloop.db")])
async def test_the_environment_may_say_which(
    variable: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYLOOP_STORE", variable)
    await open_store().close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


async def test_an_address_counts_more_than_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYLOOP_STORE", "other.db")
    await open_store("s.db").close()
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.parametrize("address", ["postgres://u:pw@host/db", "postgresql://host", "PostgreSQL://host"])
def test_an_address_of_postgres_is_one(
    address: str, postgres: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(address)
    monkeypatch.setenv("WHYLOOP_STORE", address)
    open_store()
    assert postgres == [address, address]


@pytest.mark.parametrize(
    "address",
    [
        "mysql://user:secret@host/db",
        "postgres:/user:secret@host/db",
        "postgres:user:secret@host/db",
        "postgre://user:secret@host/db",
        " postgres://user:secret@host/db",
        "'postgres://user:secret@host/db'",
        "host=db user=me password=secret",
        "sqlite:///secret.db",
    ],
)
def test_any_other_address_is_refused_without_being_shown(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://") as refused:
        open_store(address)
    assert "secret" not in str(refused.value)
    begins = address.replace("=", ":").split(":")[0].strip()
    assert str(refused.value).startswith(f"not the address of a store (it begins with {begins!r})")
    assert not list(tmp_path.iterdir())


async def test_a_path_that_looks_like_an_address_is_given_as_one(tmp_path: Path) -> None:
    await open_store(Path("session:1.db")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["session:1.db"]


def test_an_empty_path_is_a_folder() -> None:
    with pytest.raises(StoreError, match="is a folder"):
        open_store("")
