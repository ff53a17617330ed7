"""What knows nothing of groupwise: seeds, statistics, harmless text, signals, durations."""
