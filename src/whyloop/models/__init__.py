"""Real models: four wire formats, one client, and the hosts that people use."""

from whyloop.models.fallback import FallbackModel
from whyloop.models.presets import load
from whyloop.models.recording import RecordingModel, ReplayModel

__all__ = ["FallbackModel", "RecordingModel", "ReplayModel", "load"]
