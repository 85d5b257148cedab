"""Commands of whoever runs a node."""
