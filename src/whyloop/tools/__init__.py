"""Tools: functions that a model may call, and toolsets of them."""
