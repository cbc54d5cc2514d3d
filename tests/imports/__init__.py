"""Logs of other agents as sessions."""
