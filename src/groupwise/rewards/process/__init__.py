"""Scores of the reasoning: is its arithmetic right?"""
