"""Verifiers: the text of a completion in, a `Score` out.

Model text is read, never run: no `eval`, no `sympify`, no XML library. Every function here answers in time linear in
the completion, whatever is in it, and does not raise on model text. None of it knows where problems come from.
"""
