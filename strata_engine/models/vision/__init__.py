"""Image towers: config, tensors, forward; images to patches; where image tokens stand in a prompt."""
