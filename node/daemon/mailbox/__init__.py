"""Mailboxes: places that are no peers, where members publish for those who cannot connect to them."""
