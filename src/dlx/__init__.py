"""dlx-node: verifiable decentralised training, as a library."""
