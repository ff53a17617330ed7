"""Training: the loops of the stages, what they share, the pipeline around them, checkpoints."""
