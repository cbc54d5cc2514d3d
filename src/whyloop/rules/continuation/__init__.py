"""The criteria that decide after every step, and how their decisions are resolved."""
