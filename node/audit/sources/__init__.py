"""Where an audit's blobs come from: folders first, then peers."""
