"""Wall clock on slow links: `python -m benchmarks.links --help`."""
