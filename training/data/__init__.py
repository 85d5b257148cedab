"""Training data: documents in many formats, tokenised into shards, read as samples."""
