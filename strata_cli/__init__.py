"""Everything a person or a client touches: commands, REPL, HTTP server. Knows nothing of tensors."""

__version__ = "0.1.0"
