"""The HTTP server: routes over a Service. Knows wire formats; knows nothing of tensors."""
