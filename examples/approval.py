"""Ask a person before a refund: one process asks, a second decides, a third continues."""

import asyncio
import tempfile
from pathlib import Path

from whyloop import Agent, Session, tool
from whyloop.stores import SqliteStore
from whyloop.testing import Reply, ScriptedModel, call, calls


@tool(needs_approval=lambda arguments: arguments["amount"] > 100)
async def refund(order: int, amount: int) -> str:
    """Pay money back for an order."""
    return f"{amount} refunded for order {order}"


def build(*replies: Reply | str) -> Agent:
    return Agent(ScriptedModel(replies), tools=[refund])


async def customer_writes(file: Path) -> None:
    """Run in the web server until a call needs approval."""
    wanted = [(17, 40), (18, 900), (19, 250)]
    agent = build(calls(*(call("refund", {"order": order, "amount": amount}) for order, amount in wanted)))
    async with SqliteStore(file) as store:
        session = await Session.open(store, agent, metadata={"customer": "ann"})
        state = await session.send("Please refund my orders 17, 18 and 19")
        print(state.explanation.headline)


async def support_decides(file: Path) -> str:
    """Decide about the waiting calls, which needs the store but no agent."""
    async with SqliteStore(file) as store:
        (waiting,) = (await store.sessions(status="paused")).sessions
        state = await store.load(waiting.agent_id)
        for question in state.pending_calls:
            print(f"  {question.question}: {question.arguments}")
        unpaid, too_much = state.pending_calls
        await store.deny(waiting.agent_id, unpaid.id, "order 18 was never paid", by="Ada")
        await store.edit(waiting.agent_id, too_much.id, {"order": 19, "amount": 230}, by="Ada")
        return waiting.agent_id


async def worker_continues(file: Path, agent_id: str) -> None:
    """Run the approved calls in a worker, and let the model answer."""
    async with SqliteStore(file) as store:
        session = await Session.open(store, build("You get 40 and 230 back."), agent_id)
        state = await session.resume()
        print("\n".join(f"  {message.text}" for message in state.messages if message.is_tool))
        print(session.explain())


with tempfile.TemporaryDirectory() as folder:
    database = Path(folder, "whyloop.db")
    asyncio.run(customer_writes(database))
    asyncio.run(worker_continues(database, asyncio.run(support_decides(database))))
