"""What a node keeps on disk: public data, shards, versions."""
