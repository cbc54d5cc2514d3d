"""Spend at most 1.5 cents on a question, ask a person before each booking, and grant more money.

A real model is `load("openai:gpt-5")`: its price is in the list of the extra `prices`.
The scripted model of this example has a price of its own.
"""

from whyloop import Agent, Budget, CostLimit, Price, Usage, tool
from whyloop.testing import ScriptedModel, call, text

PRICE = Price(input=2.5, output=10, cached=0.25)  # US dollars per million tokens


@tool(needs_approval=True)
def book(train: str) -> str:
    """Book a seat on a train."""
    return f"booked: {train}"


@tool
def find_hotels(city: str) -> str:
    """Find the hotels of a city."""
    return f"Hotel Bellecour, {city}, 120 euros"


def used(tokens: int, cached: int = 0) -> Usage:
    return PRICE.priced(Usage(tokens, 150, cached=cached))


model = ScriptedModel(
    [
        call("book", {"train": "09:12 to Lyon"}, usage=used(4_000)),
        call("find_hotels", {"city": "Lyon"}, usage=used(5_000, cached=4_000)),
        text("You travel at 09:12. Hotel Bellecour has a room.", usage=used(5_200, cached=5_000)),
    ]
)
agent = Agent(model, tools=[book, find_hotels], criteria=[CostLimit(0.015)])

state = agent.run_sync("Book me a train to Lyon, and find a hotel")
print(state.explanation.headline)

(question,) = state.pending_calls
state = agent.resume_sync(state.approve(question.id, by="Ada"))
print(state.explanation.headline)
print("next:", *state.explanation.next_actions)

state = agent.resume_sync(state, grant=Budget(usd=0.01))
print(state.explain())
print(f"cost of the session: {state.usage.cost} US dollars")
