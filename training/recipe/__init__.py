"""What a run is: the manifest and its draft, model families, presets, and the checks of both. No torch."""
