"""Real models: four wire formats, one HTTP client, and presets for common hosts."""

from whyloop.loop.attempts import wait_to_repeat
from whyloop.models.fallback import FallbackModel
from whyloop.models.presets import load
from whyloop.models.recording import RecordingModel, ReplayModel

__all__ = ["FallbackModel", "RecordingModel", "ReplayModel", "load", "wait_to_repeat"]
