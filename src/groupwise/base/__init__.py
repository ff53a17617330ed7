"""Code that knows nothing of groupwise: seeds, statistics, safe and wrapped text, signals, durations, JSON values."""
