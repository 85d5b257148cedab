"""How chain nodes are asked over JSON-RPC. A request goes straight down, as data:

    rpc_client.py      what is asked, and what answers say: numbers, headers, batches, new heads
    failover.py        which chain node is asked, and which next; web3's contracts ask through it as well
    endpoint.py        one URL, and what is remembered of the chain node behind it
    http_transport.py  the way there and back by HTTP: bounded answers, whole by a deadline
    websocket.py       the same by websocket

Pure functions: json_rpc.py has the messages, headers.py the headers of blocks.
"""
