"""Benchmarks of groupwise itself: `groupwise bench`. Each command prints a table or JSON."""
