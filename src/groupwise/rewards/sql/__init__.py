"""Scores of SQL queries: run read-only on SQLite and judged by their rows."""
