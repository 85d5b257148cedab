"""The node's second process: everything that needs torch, joined to the network process by a local socket."""
