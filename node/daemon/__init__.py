"""The running node: what `dlx-node start` runs until it is stopped."""
