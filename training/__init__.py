"""Training: manifest, model stages, data, inner loop, codecs, outer step. Knows no network and no ledger."""
