"""The parts of `whyloop demo`: an assistant, its scenarios, and the ways to show a run."""
