"""A run's public blobs, from folders and peers, and its versions rebuilt from them: what audit and pull share."""
