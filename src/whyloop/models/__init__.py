"""Real models: four wire formats, one client, and the hosts that people use."""
