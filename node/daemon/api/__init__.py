"""What a running node says of itself: status, metrics, health."""
