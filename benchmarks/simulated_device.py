"""Measures what the simulated device adds: `python benchmarks/simulated_device.py`.

Every number is a ratio or a difference of two measurements of the same run: a small operator on
the device and on the CPU, a GPT step on both, and the import with and without the device. The
targets stand beside the numbers; the script reports, it does not fail.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import ascend_sim

ascend_sim.install()

import torch  # noqa: E402  (after the device is there)
from torch.nn import functional  # noqa: E402

_IMPORT_PLAIN = "import ascend_sim.loader as l; l.preload(l.Settings()); import torch, torch_npu"
_IMPORT_INSTALL = "import ascend_sim; ascend_sim.install()"


def measure_us(function: Callable[[], object], *, repeats: int = 7, calls: int = 300) -> float:
    """Return the processor time of a call in microseconds: the best mean of several rounds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            function()
        best = min(best, (time.process_time() - start) / calls)
    return best * 1e6


def make_calls(device: str) -> dict[str, Callable[[], object]]:
    """Return small operators on a device by name."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    weight = torch.randn(8, device=device)
    table = torch.randn(32, 8, device=device)
    index = torch.arange(8, device=device)
    return {
        "add": lambda: x + y,
        "add scalar": lambda: x + 1,
        "mul_": lambda: x.mul_(1.0),
        "mm": lambda: x @ y,
        "sum": lambda: x.sum(-1),
        "softmax": lambda: functional.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (8,), weight, weight),
        "gelu": lambda: functional.gelu(x),
        "cat": lambda: torch.cat([x, y]),
        "to(bfloat16)": lambda: x.to(torch.bfloat16),
        "embedding": lambda: functional.embedding(index, table),
        "index_select": lambda: table.index_select(0, index),
        "transpose": lambda: x.transpose(0, 1),
        "contiguous": lambda: x.t().contiguous(),
        "empty": lambda: torch.empty(8, 8, device=device),
        "zeros": lambda: torch.zeros(8, 8, device=device),
        "item": lambda: weight[0].item(),
        "native_dropout": lambda: functional.dropout(x, 0.5, True),
    }


class Block(torch.nn.Module):
    """A pre-norm transformer layer with causal attention written out."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.proj = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = (
            torch.nn.Linear(hidden, 4 * hidden),
            torch.nn.Linear(4 * hidden, hidden),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[b, s, h] to [b, s, h]."""
        b, s, h = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, h // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2) / (h // self.heads) ** 0.5).masked_fill(mask, -1e9)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h)
        x = x + self.proj(mixed)
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


def measure_step_ms(device: str, *, hidden: int = 512, sequence: int = 256) -> float:
    """Return the time of one AdamW step of a two-layer GPT."""
    torch.manual_seed(0)
    embed = torch.nn.Embedding(1024, hidden)
    blocks = torch.nn.ModuleList([Block(hidden, 8) for _ in range(2)])
    head = torch.nn.Linear(hidden, 1024, bias=False)
    model = torch.nn.ModuleList([embed, blocks, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 1024, (2, sequence + 1), device=device)
    mask = torch.ones(sequence, sequence, dtype=torch.bool, device=device).triu(1)

    def step() -> None:
        optimizer.zero_grad()
        x = embed(tokens[:, :-1])
        for block in blocks:
            x = block(x, mask)
        functional.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    step()
    return measure_us(step, repeats=3, calls=1) / 1e3


def measure_import_s(code: str) -> float:
    """Return the best time of three fresh interpreters."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True
        )
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    host, device = make_calls("cpu"), make_calls("npu")
    print(f"{'operator':18s}{'cpu us':>9s}{'npu us':>9s}{'added':>9s}   (target: under 40 added)")
    for name, call in host.items():
        on_cpu, on_npu = measure_us(call), measure_us(device[name])
        print(f"{name:18s}{on_cpu:9.1f}{on_npu:9.1f}{on_npu - on_cpu:9.1f}")
    on_cpu, on_npu = measure_step_ms("cpu"), measure_step_ms("npu")
    ratio = on_npu / on_cpu
    print(
        f"GPT step h=512 s=256: {on_cpu:.0f} ms, {on_npu:.0f} ms, ratio {ratio:.2f} (target: 1.5)"
    )
    plain, installed = measure_import_s(_IMPORT_PLAIN), measure_import_s(_IMPORT_INSTALL)
    ratio = installed / plain
    print(f"import: {plain:.2f} s, {installed:.2f} s, ratio {ratio:.2f} (target: 1.3)")


if __name__ == "__main__":
    main()
