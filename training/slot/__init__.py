"""One slot's training state: rounds from start to payload, kept on disk, committed to, replayable."""
