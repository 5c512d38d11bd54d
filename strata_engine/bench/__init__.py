"""Measuring: the forward pass alone, and a server under load; results in one schema with four printed forms."""
