"""What the commands for stored sessions have in common."""
