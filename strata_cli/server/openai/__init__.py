"""The OpenAI-shaped routes: chat completions, completions, models."""
