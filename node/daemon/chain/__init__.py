"""The chain as a running node follows it."""
