"""The flags of MindSpeed by feature, so that one that no build here has is told from a slip.

docs/migrating-from-mindspeed.md says of each what takes its place.
"""

_BY_FEATURE = """
adaptive-cp: --adaptive-cp-dynamic-attn-mask --adaptive-cp-manually-set-mask-list
  --adaptive-cp-only-reschedule --adaptive-cp-without-coarse --attention-mask-on-cpu
aiqos: --aiqos --aiqos-enable-roce --aiqos-mode --aiqos-schedule
alibi: --alibi-diagonal-opposite --alibi-fusion-attn-type --fill-neg-inf
  --position-embedding-type --square-alibi-mask
async-log-allreduce: --async-log-allreduce
auto-settings: --auto-settings --auto-settings-log-level --auto-settings-ranks
  --auto-settings-type --auto-settings-work-dir --automated-pipeline --automated-pipeline-perf
  --jit-compile --master-addr --master-port --nnodes --node-rank --nproc-per-node --prof-file
  --recompute-module-list --target-nnodes
balanced-moe-experts: --balanced-moe-experts --balanced-moe-hot-expert-num
  --trans-hot-expert-group-num
coc: --coc-fused-kernel --coc-mode --coc-parallel-num --use-ascend-coc
compress-activation: --compress-activation
compress-dense: --compress-dense
compress-optimizer: --compress-optimizer
cp-kv-cache: --context-parallel-cache-interval --context-parallel-kv-cache-policy
  --use-ulysses-allgather-kv
deepseek-sparse-attention: --experimental-attention-variant --use-dsa-absorb
  --use-fused-lightning-indexer --use-fused-lightning-indexer-kl-loss
  --use-fused-sparse-flash-attention
disable-gloo-group: --disable-gloo-group --hccl-slice-size
dist-train: --dist-train
dualpipev: --dualpipev-dw-detach --schedules-method
enable-recompute-layers-per-pp-rank: --enable-recompute-layers-per-pp-rank
expert-placement: --enable-expert-placement --enable-fine-grained-expert-placement
  --expert-placement-freq --fine-grained-expert-placement-thre --print-expert-load
fix-router: --fix-router
flash-attention: --next-tockens --pre-tockens --sparse-mode
fused-ema-adamw: --ema-decay
fused-rope: --use-fused-rotary-pos-emb
fusion-attention-v2: --use-fusion-attn-v2
hccl-group-buffer: --hccl-group-buffer
hccl-group-buffer-adaptive: --hccl-ep-group-buffer-adaptive-factor
  --hccl-group-buffer-adaptive
hccl-op-mode: --hccl-op-mode
layerzero: --layerzero --layerzero-config
low-precision-optimizer: --quant-grads --quant-states
mc2: --use-ascend-mc2
megatron-basic: --use-fused-rmsnorm --use-fused-swiglu
mindspore-patch: --ai-framework
moe-allgather-overlap-comm: --moe-allgather-overlap-comm
moe-alltoall-mc2: --moe-alltoall-mc2
moe-alltoall-overlap-comm: --moe-alltoall-overlap-comm
moe-fb-overlap: --moe-fb-overlap --moe-unperm2-mem-optim-swap
moe-grouped-gemm: --gemm-gradient-accumulation-fusion
moe-permute-fusion: --use-fused-moe-token-permute-and-unpermute
moe-tp-extend-ep: --moe-permutation-async-comm --moe-tp-extend-ep
moe-zero-memory: --moe-zero-memory --moe-zero-memory-num-layers
multi-latent-attention: --multi-head-latent-attention --qk-nope-head-dim --qk-rope-head-dim
multi-parameter-pp: --use-multiparameter-pipeline-model-parallel
muon: --apply-wd-to-qk-layernorm --muon-coefficient-type --muon-extra-scale-factor
  --muon-fp32-matmul-prec --muon-momentum --muon-nesterov --muon-no-split-qkv
  --muon-num-ns-steps --muon-scalar-optimizer --muon-scale-mode --muon-tp-mode --optimizer
n-shared-experts: --n-shared-experts
noop-layers: --noop-layers
npu-datadump: --npu-datadump
npu-deterministic: --npu-deterministic
op-cal-tflops: --op-cal-tflops
optimize-send-recv-comm: --optimize-send-recv-comm
param-and-grad-buffer-pad: --param-and-grad-buffer-pad
pipeline-model-parallel-layout: --pipeline-model-parallel-layout
profile: --profile-level --profile-record-shapes --profile-save-path --profile-with-cpu
  --profile-with-memory --profile-with-stack
qad: --kl-loss-reduction --kl-loss-weight --kl-temperature --no-qad-enable --qad-enable
  --qad-teacher-load
qat: --qat-quant-block-size --qat-scheme
recompute-activation-function: --recompute-activation-function
  --recompute-activation-function-num-layers
recompute-norm: --recompute-norm --recompute-norm-num-layers
requirements-basic: --optimization-level --optimizer-selection
reset-attention-mask: --fix-sub-seq-length
reset-bucket-group-order: --reset-bucket-group-order
reuse-fp32-param: --reuse-fp32-param
ring-attention-cp: --attention-mask-type --context-parallel-algo --cp-window-size
  --megatron-cp-in-bnsd --use-cp-send-recv-overlap --use-fused-ring-attention-update
ripipe: --recompute-in-advance --recompute-in-bubble
smart-swap: --smart-swap
swap-attention: --swap-attention --swap-modules
swap-layer-input: --swap-layer-input
swap-optimizer: --swap-optimizer --swap-optimizer-times
tokenizer-hf: --tokenizer-name-or-path --tokenizer-not-use-fast --tokenizer-type
torch-fsdp2: --fsdp2-config-path
tp-2d: --enable-backward-overlap-ag-with-matmul --enable-overlap-ag-with-matmul
  --enable-overlap-matmul-with-rs --tp-2d --tp-x --tp-y
transformer-engine-basic: --fp8-format --fp8-recipe --fp8-reuse-quantized-weight
  --moe-router-dtype --no-use-gmm-fp8 --te-comparison-with-bf16 --te-comparison-with-cpu
  --te-gmm-mode
ttp: --ttp-dump-dir --ttp-dump-timeout-seconds --ttp-enabled --ttp-heartbeat-interval-ms
  --ttp-heartbeat-timeout-ms --ttp-max-dump-ckpt-to-keep --ttp-max-missed-count
  --ttp-save-optimizer --ttp-save-rng --ttp-server-ip --ttp-server-port
  --ttp-wait-dump-file-timeout
ulysses-cp: --ulysses-degree-in-cp
unaligned-linear: --unaligned-linear
unaligned-pp: --pipeline-num-transformer-layers
variable-seq-lengths: --variable-seq-lengths
virtual-optimizer: --virtual-optimizer
"""


def read_flags() -> dict[str, str]:
    """Flag to the feature of MindSpeed that it belongs to."""
    lines = _BY_FEATURE.strip().replace("\n  ", " ").splitlines()
    pairs = (line.split(": ") for line in lines)
    return {flag: feature for feature, flags in pairs for flag in flags.split()}
