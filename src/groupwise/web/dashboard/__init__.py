"""`groupwise watch`: run directories in a browser, while they grow.

    run directories ──▶ Library (finds them) ──▶ routes (JSON) ──▶ loopback_server (HTTP) ──▶ page

Reads run directories and never the trainer, writes nothing, and imports without torch. `group_outline`, `index` and
`text_search` make 100,000 rollouts quick to search; `tail` reads new lines; `state` says how a run is doing.
"""
