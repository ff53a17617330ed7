"""Equality of two mathematical answers."""
