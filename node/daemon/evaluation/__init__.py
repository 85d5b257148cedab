"""Held-out loss: this node's parts of the evaluations that it is drawn for."""
