"""Commands of whoever creates, pays for or uses a run."""
