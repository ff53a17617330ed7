"""Engines: token ids in, token ids and logprobs out. They never meet tasks or rewards."""
