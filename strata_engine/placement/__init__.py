"""What a model needs before anything is allocated."""
