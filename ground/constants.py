"""Numbers that more than one package has to agree on."""

NO_HASH = bytes(32)  # stands for "there is none" wherever a 32-byte hash is expected
MICRO = 1_000_000  # losses are integers of micro-nats wherever they are signed
UNIT = 32768  # the aggregation multiplier 1.0 (Q1.15)
MOST_LOSS = 1e9  # nats per token; no model that learns comes near
EPOCH_ROUNDS = 16  # of an epoch of pay
