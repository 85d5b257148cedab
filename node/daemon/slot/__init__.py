"""One slot's life: its rounds, training process, pipes and messages."""
