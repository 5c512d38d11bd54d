"""Running models: scheduler, executor, sampler, the engine loop and the service of several engines."""
