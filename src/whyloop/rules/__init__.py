"""Pure functions of values: when to continue, what a failure is, a tool's schema."""
