"""Anthropic's messages, and the hosts that speak the same language."""
