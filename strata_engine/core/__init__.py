"""Sequences and batches: what the scheduler, the memory and the models hand to each other."""
