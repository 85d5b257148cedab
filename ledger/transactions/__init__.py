"""An account's transactions: priced, numbered, signed, sent, and on disk until they are confirmed."""
