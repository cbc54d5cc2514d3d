"""Identifiers for sessions and executions."""

import os


def new_id() -> str:
    """A random identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()
