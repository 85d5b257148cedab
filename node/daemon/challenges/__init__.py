"""Own work that was drawn, and others': answered, checked, judged."""
