"""Pure functions of values: when to go on, what to do about failures, what a tool's schema is."""
