"""Pure translation between values and what travels or is stored."""
