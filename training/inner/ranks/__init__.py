"""A stage on several devices: each rank of a group holds its rows of every parameter, rank 0 gives orders."""
