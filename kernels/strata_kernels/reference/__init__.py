"""Plain torch versions of every operation: slow, f32, and what the fast ones are tested against."""
