#!/usr/bin/env bash
# One host's part of a run; start it on every host, with the same arguments:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 IFNAME=eth0 bash torchrun.sh pretrain.py --args ...
# No rank trains unless every rank of every host runs the same build.
set -euo pipefail

: "${NNODES:?number of hosts}" "${NODE_RANK:?number of this host, from 0}"
: "${MASTER_ADDR:?address of host 0}" "${IFNAME:?network interface that the hosts share}"
: "${MASTER_PORT:=29500}" "${NPROC_PER_NODE:=8}" "${PYTHON:=python}" "${VERIFY_TIMEOUT_S:=300}"
# Both names: HCCL carries the device's traffic, Gloo the host's.
export HCCL_SOCKET_IFNAME=$IFNAME GLOO_SOCKET_IFNAME=$IFNAME

launch=(
  "$PYTHON" -m torch.distributed.run
  --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$NPROC_PER_NODE"
  --master-addr "$MASTER_ADDR"
)

"${launch[@]}" --master-port "$MASTER_PORT" -m mindspeed.verify --timeout "$VERIFY_TIMEOUT_S"
# Another port: the first run's store may still be closing.
exec "${launch[@]}" --master-port "$((MASTER_PORT + 1))" "$@"
