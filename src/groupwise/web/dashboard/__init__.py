"""`groupwise watch`: run directories in a browser, while they grow.

    run directories ──▶ Library (finds them) ──▶ api (JSON) ──▶ server (loopback HTTP) ──▶ page

Reads run directories and never the trainer, writes nothing, and imports without torch. `outline`, `index` and `search`
are what makes 100,000 rollouts quick to look through; `tail` reads what is new; `state` says how a run is doing.
"""
