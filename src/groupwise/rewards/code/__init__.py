"""Programs: found in a completion, run in the sandbox, judged by tests whose answers never go in."""
