"""The rules of docs/protocol/rounds.md as pure functions and one state machine: events in, actions out."""
