"""The page: runs as the ledger's index has them, for people who would rather look than read. It believes no node.

From the bottom, in `reading`: `coverage` and `totals` sum up a run's events and rows as they come. `reader` has all of
that for a ledger, `page` makes plain view data of it. `render` and the templates make HTML of the view data, for a file
or for `app`, which serves it.
"""
