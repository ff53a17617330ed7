"""Queries: run read-only on SQLite, judged by their rows."""
