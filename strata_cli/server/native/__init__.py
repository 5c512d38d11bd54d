"""Routes outside the OpenAI family: llama.cpp's small helpers and our own status routes."""
