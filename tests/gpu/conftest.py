import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): with pytest-xdist --dist loadgroup, these run in one process")


def pytest_collection_modifyitems(config, items):
    import torch

    if not torch.cuda.is_available():
        if os.environ.get("NCT_NEED_GPU"):
            raise pytest.UsageError("NCT_NEED_GPU is set and PyTorch sees no GPU")
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(scope="session")
def table():
    """Rows of the accuracy table; written as JSON at the end where NCT_GPU_TABLE names a file."""
    rows = []
    yield rows
    if os.environ.get("NCT_GPU_TABLE"):
        import json

        import torch

        head = {"hardware": torch.cuda.get_device_name(0), "date": __import__("datetime").date.today().isoformat(),
                "command": "make test-gpu"}
        name = os.environ["NCT_GPU_TABLE"] + os.environ.get("PYTEST_XDIST_WORKER", "")
        Path(name).write_text("\n".join(json.dumps({**head, **r}) for r in rows) + "\n")
