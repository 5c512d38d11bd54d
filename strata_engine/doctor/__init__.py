"""Checks of this machine and this installation: each says ok, warn, fail or skip, and what to do."""
