"""Scores of JSON documents by a schema."""
