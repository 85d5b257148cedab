"""Connections to members that cannot be reached, carried by members that can."""
