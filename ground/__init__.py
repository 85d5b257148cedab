"""What every package stands on: durable files, the blob store, shared constants. Imports nothing of ours."""
