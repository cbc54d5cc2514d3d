"""The headroom of a run: what is left of its limits, as a message to the model."""

from __future__ import annotations

from collections.abc import Sequence

from whyloop.rules.limits import Limit, StepsLimit
from whyloop.values.messages import Message, MessageRole
from whyloop.values.state import AgentState

THRESHOLDS = (0.5, 0.25, 0.1)
"""The shares of a limit that are left when the model is informed."""


class Headroom:
    """The rest of the limits of a run.

    The message about it is part of a request alone, and is sent when half, a quarter or a tenth of a limit is
    left, once each. A new runner may send it again.
    """

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._levels = [0] * len(limits)
        self._latest: Message | None = None

    def message(self, state: AgentState) -> Message | None:
        """Return the message for the next request; None if no limit has come to a threshold since the last.

        A request that failed is made again as it was.
        """
        last, sent = state.current_step, self._latest
        shares = [max(0.0, 1 - limit.used(state) / _allowed(limit, state)) for limit in self._limits]
        levels = [sum(share <= threshold for threshold in THRESHOLDS) for share in shares]
        is_lower = any(now > before for now, before in zip(levels, self._levels, strict=True))
        is_repeated = sent is not None and last is not None and last.model_failure is not None
        self._levels, self._latest = levels, None
        if is_lower or is_repeated:
            left = [_left(limit, state, share) for limit, share in zip(self._limits, shares, strict=True)]
            text = f"Left for this run: {', '.join(left)}. Answer before it is used up."
            self._latest = Message(MessageRole.DEVELOPER, text, source=("show_limits",))
        return self._latest


def _allowed(limit: Limit, state: AgentState) -> float:
    return limit.limit + limit.granted(state)


def _left(limit: Limit, state: AgentState, share: float) -> str:
    """Return what is left of one limit: "4 of 20 steps", "31 % of tokens"."""
    of_session = " of this session" if limit.scope == "session" else ""
    if isinstance(limit, StepsLimit):
        allowed = _allowed(limit, state)
        return f"{max(0, allowed - limit.used(state)):g} of {allowed:g} steps{of_session}"
    return f"{share:.0%} of {limit.noun or type(limit).__name__}{of_session}".replace("%", " %")
