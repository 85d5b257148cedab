#!/bin/sh
# Of the compose devnet: `node.sh create` makes the run, from node 0's folder; `node.sh N` runs node N.
set -eu
contracts=/home/dlx/chain/chain/contracts.json
ledger=$(python -c "import json; print(json.load(open('$contracts'))['ledger'])")
number=${1#create}
number=${number:-0}
folder=/home/dlx/node-$number
dlx-node init --datadir "$folder" --insecure-devnet --ledger "$ledger"
if [ "$1" = create ]; then
    exec dlx-node run create --datadir "$folder" --manifest /deploy/run.toml --public-data
fi
exec dlx-node start --datadir "$folder" --http-port "910$number" --listen "/ip4/127.0.0.1/tcp/465$number"
