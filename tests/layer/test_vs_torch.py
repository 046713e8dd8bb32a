"""500 random layers against PyTorch in float64: the reference tightly, every CPU variant within the f32 bound."""
import pytest

import layerlib as nct
import torchref
from random_layers import random_case

SEEDS = range(500)
BLOCK = 50
BLOCKS = [SEEDS[i:i + BLOCK] for i in range(0, len(SEEDS), BLOCK)]
block = pytest.mark.parametrize("seeds", BLOCKS, ids=[f"seeds {b[0]}..{b[-1]}" for b in BLOCKS])


@block
def test_reference_is_pytorch(seeds):
    for seed in seeds:
        layer, case = random_case(seed)
        case["y_dtype"] = "f64"
        job = nct.Job(layer, **case).reference()
        for n, (x, got) in enumerate(zip(job.xs, job.values())):
            conv, want = torchref.forward(layer, nct.value(x, job.x_dtype))
            tolerance = nct.bound(layer, conv, want, b=1e-12)
            nct.first_bad(got, want, tolerance, f"seed {seed}, frame {n}, T {x.shape[1]}, {case['x_dtype']}, {layer}")


@block
@pytest.mark.parametrize("variant", nct.variants())
def test_cpu_is_pytorch(variant, seeds):
    for seed in seeds:
        layer, case = random_case(seed)
        job = nct.Job(layer, **case).cpu(variant, n_workers=1 + seed % 3)
        for n, (x, got) in enumerate(zip(job.xs, job.values())):
            conv, want = torchref.forward(layer, nct.value(x, job.x_dtype))
            tolerance = nct.bound(layer, conv, want, job.y_dtype)
            nct.first_bad(got, want, tolerance,
                          f"seed {seed}, frame {n}, T {x.shape[1]}, {case['x_dtype']} -> {case['y_dtype']}, {layer}")
