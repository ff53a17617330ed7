"""The native engine: rollouts on the trainer's own modules, with a cache of blocks and one graph per decode step."""
