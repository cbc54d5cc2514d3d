"""Frozen data: no input or output, no clock, no knowledge of the loop."""
