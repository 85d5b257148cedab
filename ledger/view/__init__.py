"""One run as the contract sees it, recomputed from its events alone.

    run_state.py  plain data, as the contract's structs have it; seal_log.py: its sealed rounds
    weights.py, runs.py, seals.py, sites.py, verdicts.py, pay.py, bitmaps.py
                  the rules, pure functions of that data, in files named as the contract's
    run_view.py   the data after the events applied so far, with the rules as methods
    recount.py    an auditor's recount of one seal or conviction

node_registry.py has the registered nodes, which belong to no run.
"""
