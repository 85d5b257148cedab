"""The contracts' events on disk, read from the chain once, and the views rebuilt from them."""
