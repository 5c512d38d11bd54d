"""Finding, downloading and keeping model files. No torch."""
