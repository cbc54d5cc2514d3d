"""Pure functions of values: when to continue, how to handle failures, the schema of a tool."""
