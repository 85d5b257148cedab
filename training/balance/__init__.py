"""What a run costs before it exists: operations, memory, bytes and seconds of each stage, and a better split."""
