"""Verifiers: the text of a completion in, a `Score` out. One folder or file per kind of answer.

Model text is never evaluated in this process: no `eval`, no `sympify`, no XML library. Programs run in the sandbox,
queries in a read-only SQLite with a budget. Everything is linear in the completion and never raises on model text,
except algebra (`math.algebra`) and programs, which is why scoring runs in killable workers. Nothing here knows
where problems come from.
"""
