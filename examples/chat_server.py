"""Serve a chat that streams its answers; without the name of a model, have one conversation and end."""

import asyncio
import socket
import sys

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from whyloop import Agent
from whyloop.models import load
from whyloop.server import AgentServer
from whyloop.stores import MemoryStore
from whyloop.testing import ScriptedModel, call, text

PAGE = """<!doctype html><title>Chat</title><pre></pre><form><input name="text"></form><script type="module">
import { shouldRenderContent } from "/ui/index.js"; import { followSession } from "/ui/session.js";
const [chat, form] = document.querySelectorAll("pre, form"), headers = { "content-type": "application/json" };
const post = (url, body) => fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
const url = `/chat/sessions/${(await (await post("/chat/sessions", {})).json()).session.agent_id}`;
const line = ({ role, content }) => `${role}: ${content}\\n`;
followSession(url, ({ messages }) => chat.replaceChildren(...messages.filter(shouldRenderContent).map(line)));
form.onsubmit = () => (post(`${url}/messages`, { text: form.text.value }), form.reset(), false);</script>"""


def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day == "Sunday" else "9:00 to 18:00"


script = [call("opening_hours", {"day": "Sunday"}), text("We are closed on Sundays.")]
model = load(sys.argv[1]) if sys.argv[1:] else ScriptedModel(script, by_word=True)
server = AgentServer(MemoryStore(), Agent(model, [opening_hours]), public=True)  # For users: access=…
app = Starlette(routes=[Route("/", lambda _: HTMLResponse(PAGE))], lifespan=server.lifespan)
app.mount("/chat", server)
app.mount("/ui", StaticFiles(packages=[("whyloop", "ui")]))


async def serve_one_conversation() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    service = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(service.serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/chat/sessions"
    async with aiohttp.ClientSession() as http, http.post(url, json={"agent_id": "42"}):
        events = await http.ws_connect(f"{url}/42/events")
        await http.post(f"{url}/42/messages", json={"text": "Are you open on Sunday?"})
        while (event := await events.receive_json())["data"].get("status") != "completed":
            print(event["event"], event["data"].get("chunk") or event["data"].get("result_summary", ""))
    print(event["event"], event["data"]["reason"])
    service.should_exit = True
    await serving


if __name__ == "__main__":
    uvicorn.run(app) if sys.argv[1:] else asyncio.run(serve_one_conversation())
