"""Verifiers: the text of a completion in, a `Score` out. One folder or file per kind of answer.

Model text is never evaluated in our process: no `eval`, no `sympify`, no XML library. Programs run in the sandbox,
queries in a read-only SQLite with a budget. Everything answers in time linear in the completion and does not raise on
model text, but for algebra (`math.algebra`) and programs: those are why scoring runs in killable workers. None of it
knows where problems come from.
"""
