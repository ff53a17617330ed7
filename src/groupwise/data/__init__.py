"""Which problems come next, and how scored groups become batches."""
