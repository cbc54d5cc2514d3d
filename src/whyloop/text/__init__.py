"""What models and people write: calls written as text, JSON inside prose, visible text."""
