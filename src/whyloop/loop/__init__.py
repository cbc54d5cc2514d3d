"""Orchestration: one step after the other, until the criteria say stop."""
