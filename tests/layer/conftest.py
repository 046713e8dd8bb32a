"""Every test runs on the reference and on each CPU variant of this machine, or on the variants alone."""
import pytest

import layerlib as nct


@pytest.fixture(params=nct.variants())
def variant(request):
    return request.param


@pytest.fixture(params=["reference"] + nct.variants())
def engine(request):
    """A function that runs a Job: job = engine(job)."""
    name = request.param

    def run(job, **how):
        return job.reference() if name == "reference" else job.cpu(name, **how)

    run.name = name
    run.exact = name == "reference"
    run.y_dtype, run.b = ("f64", 1e-12) if run.exact else ("f32", 5e-6)
    return run
