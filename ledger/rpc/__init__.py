"""What chain nodes are asked over JSON-RPC: bounded answers, deadlines, several URLs."""
