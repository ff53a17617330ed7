"""Measuring ourselves: `groupwise bench`. Each command prints a table, or JSON for a file beside the claim."""
