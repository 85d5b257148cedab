"""The page: runs as the ledger's index has them, for people who would rather look than read. It believes no node.

From the bottom: `slots` and `facts` sum up a run's events and rows as they come, `draws` and `heard` add what was drawn
and found; `reader` keeps all of that for a ledger; `page` makes plain view data of it, `render` and the templates make
HTML of that, `app` serves it, `export` writes it to a file.
"""
