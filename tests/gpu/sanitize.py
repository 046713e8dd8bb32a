"""A few tiles of every row, for compute-sanitizer: ragged, T = 1, channels that are no multiple of a tile, every pass.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python3 sanitize.py
"""

import sys

import torch

import gpu
from gpu import Batch, Layer, Spec

LAYERS = [Spec(3, 20, 5, 4, pad=(2, 2), act="gelu"), Spec(40, 72, 3, 3, pad=(1, 1), act="mish"), Spec(64, 32, 8, 4, stride=4),
          Spec(16, 16, 3, 4, pad=(1, 1), groups=16), Spec(24, 40, 3, 5, pad=(2, 2), mode="reflect")]


def main():
    torch.manual_seed(0)
    ran = set()
    for spec in LAYERS:
        w = spec.weights()
        low = spec.dil * (spec.k - 1) + 1
        for precision in ("f32", "tf32", "bf16"):
            for row in gpu.variants():
                try:
                    layer = Layer(spec, w, precision, force=row)
                except gpu.nt.LayerError:
                    continue
                for ts, gap in (([low, low + 3], 1), ([300, low + 70], 0), ([140, 140], 4)):
                    xs = [torch.randn(spec.ci, t, device="cuda").to(torch.bfloat16 if precision == "bf16" else torch.float32) for t in ts]
                    stats = torch.zeros(2, spec.G, 3, dtype=torch.float64, device="cuda")
                    try:
                        gpu.run(layer, Batch(xs, x_gap=gap, y_gap=gap, stat_out=[0, 1]), stats=stats, want_flags=True)
                        gpu.run(layer, Batch(xs, x_gap=gap), y_dtype="bf16")
                        ran.add((row, precision))
                    except gpu.nt.LayerError as e:
                        if e.code != -95:
                            raise
    print(f"{len(ran)} rows x precisions ran")
    return 0 if len(ran) > 20 else 1


if __name__ == "__main__":
    sys.exit(main())
