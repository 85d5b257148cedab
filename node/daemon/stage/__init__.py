"""One stage's rounds as a node follows them, with a slot of the stage or as a founder: messages, payloads, seals."""
