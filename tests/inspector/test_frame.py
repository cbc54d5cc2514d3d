"""The frame of the inspector: how its files are served, and what surrounds each page."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.inspector.support import inspecting
from whyloop import Agent
from whyloop.server import Access, AgentServer
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel

ADDRESS = "http://localhost"


def client(**options: object) -> TestClient:
    given = {"public": True, "inspector": True, **options}
    return TestClient(AgentServer(MemoryStore(), **given), base_url=ADDRESS)  # type: ignore[arg-type]


def test_the_page_allows_no_inline_script_and_no_other_host() -> None:
    page = client().get("/")
    policy = page.headers["content-security-policy"]
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for name in ("inspector.js", "inspector.css", "worker.js"):
        assert client().get(f"/assets/{name}").status_code == 200


def test_a_server_without_the_inspector_has_no_page() -> None:
    assert client(inspector=False).get("/").status_code == 404


@pytest.mark.parametrize(
    "path", ["/assets/../__init__.py", "/assets/%2e%2e%2f__init__.py", "/assets/index.html"]
)
def test_no_other_file_is_served(path: str) -> None:
    assert client().get(path).status_code == 404


def test_a_known_file_is_not_sent_again() -> None:
    first = client().get("/assets/inspector.js")
    again = client().get("/assets/inspector.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert not again.content


def test_a_stranger_gets_the_empty_page_and_no_data() -> None:
    served = client(public=False, access=lambda _: None)
    assert served.get("/").status_code == 200
    assert served.get("/sessions").status_code == 401


def test_the_page_is_refused_under_a_name_that_is_not_the_servers() -> None:
    assert client().get("/", headers={"host": "evil.example"}).status_code == 421


def test_a_mounted_page_is_found_without_its_last_slash() -> None:
    server = AgentServer(MemoryStore(), inspector=True, access=lambda _: Access("ann"))
    app = TestClient(Starlette(routes=[Mount("/agents", server)]), base_url=ADDRESS)
    assert app.get("/agents").url == f"{ADDRESS}/agents/"
    assert app.get("/agents/assets/worker.js").status_code == 200


@pytest.mark.slow
async def test_the_page_lists_sessions_and_opens_one() -> None:
    store = MemoryStore()
    await store.add(await Agent(ScriptedModel(["Hello."]), name="greeter").run("Hi"))
    async with inspecting(store) as inspector:
        await inspector.show()
        row = inspector.page.locator("[data-row]")
        await expect(row).to_be_visible()
        await expect(row).to_contain_text("Hi", use_inner_text=True)
        await row.locator("a").click()
        await expect(inspector.page.get_by_text("Completed after 1 step").first).to_be_visible()


TOKEN = "a token of 24 characters"


def has_token(connection: HTTPConnection) -> Access | None:
    return Access("ann") if connection.headers.get("authorization") == f"Bearer {TOKEN}" else None


@pytest.mark.slow
async def test_a_reader_signs_in_with_a_token_or_has_it_in_the_address() -> None:
    store = MemoryStore()
    await store.add(await Agent(ScriptedModel(["Hello."])).run("Hi"))
    async with inspecting(store, public=False, access=has_token) as inspector:
        page = inspector.page
        await inspector.show("#token=%")  # It cannot be decoded, and is removed all the same.
        await page.get_by_label("This server needs a token").fill(TOKEN)
        assert "token=" not in page.url
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("[data-row]")).to_be_visible()
        await page.evaluate("() => sessionStorage.clear()")
        await page.goto("about:blank")
        await inspector.show(f"#token={quote(TOKEN)}")
        await expect(page.locator("[data-row]")).to_be_visible()
        assert "token=" not in page.url


@pytest.mark.slow
async def test_a_page_without_shared_workers_follows_over_a_web_socket_without_a_token_in_its_address() -> (
    None
):
    store, addresses = MemoryStore(), list[str]()
    async with inspecting(store, public=False, access=has_token) as inspector:
        page = inspector.page
        page.on("websocket", lambda socket: addresses.append(socket.url))
        await page.add_init_script("delete globalThis.SharedWorker")
        await inspector.show(f"#token={quote(TOKEN)}")
        await page.get_by_text("Live, memory").wait_for()
        await store.add(await Agent(ScriptedModel(["Hello."])).run("Hi"))
        await page.locator("[data-row]").wait_for()
    assert addresses
    assert not any("token" in address for address in addresses)
