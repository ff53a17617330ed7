"""The choice of problems, and batches from scored groups."""
