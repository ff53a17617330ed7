"""Whether two answers of mathematics are the same."""
