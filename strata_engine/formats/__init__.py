"""Model files: strict heads, mapped readers, storage types."""
