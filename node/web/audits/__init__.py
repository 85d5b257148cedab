"""Audits that the page starts."""
