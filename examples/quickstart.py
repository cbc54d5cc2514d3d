"""Run an agent with one tool, and print why it stopped."""

from whyloop import Agent, tool
from whyloop.testing import ScriptedModel, call, text


@tool
def temperature(city: str) -> float:
    """The temperature in a city, in degrees Celsius."""
    return {"Oslo": -3.5, "Rome": 14.0}[city]


# The model follows a script, so this runs offline. For a real one, use whyloop.models.load().
model = ScriptedModel([call("temperature", {"city": "Oslo"}), text("It is -3.5 °C in Oslo.")])
agent = Agent(model, tools=[temperature])
state = agent.run_sync("How cold is it in Oslo?")

print(state.last_response)
print()
print(state.explain())
