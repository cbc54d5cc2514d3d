"""The inspector in a real browser."""

from playwright.async_api import expect

from tests.real.browser import LONG_ENOUGH

expect.set_options(timeout=LONG_ENOUGH)
