"""The round protocol of docs/design.md, section 4, as pure functions and one state machine: events in, actions out."""
