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

PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title><div id="chat"></div><script type="module">
import { mountChat } from "/assets/chat.js";
const request = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };
const { session } = await (await fetch("/chat/sessions", request)).json();
const url = `/chat/sessions/${encodeURIComponent(session.agent_id)}`;
mountChat(document.getElementById("chat"), { url });</script>"""


def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day == "Sunday" else "9:00 to 18:00"


script = [call("opening_hours", {"day": "Sunday"}), text("We are closed on Sundays.")]
model = load(sys.argv[1]) if sys.argv[1:] else ScriptedModel(script, by_word=True)
server = AgentServer(MemoryStore(), Agent(model, [opening_hours]), public=True)  # For users: access=…
app = Starlette(routes=[Route("/", lambda _: HTMLResponse(PAGE))], lifespan=server.lifespan)
app.mount("/chat", server)
app.mount("/assets", StaticFiles(packages=[("whyloop", "inspector/static")]))


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
