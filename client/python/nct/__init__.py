"""nct: the Python client of nctd, the Conv1d + GroupNorm daemon.

    import nct
    with nct.Client("ipc:///run/nctd/ingest.sock") as c:
        y = c.call(x)            # numpy (C_in, T) -> (C_out, T_out)

nct.AsyncClient is the same for asyncio: `async with nct.AsyncClient(...) as c: y = await c.call(x)`.

nct.export(module, path) writes a model file from PyTorch's Conv1d and GroupNorm. nct.torch, which needs PyTorch, is
imported by itself."""

from ._wire import (CPU_FALLBACK, GAP, GAP_SEEN, INNER_LEFT, INNER_RIGHT, LAST, NO_PUBLISH, NO_REPLY, OBSERVE, RESENT,
                    NctError)
from ._answer import Answer
from ._export import export
from .aio import AsyncClient
from .client import Client
from .subscriber import Subscriber

__version__ = "0.1.0"
__all__ = ["Answer", "AsyncClient", "Client", "NctError", "Subscriber", "export", "NO_REPLY", "RESENT", "GAP_SEEN", "CPU_FALLBACK", "LAST",
           "NO_PUBLISH", "GAP", "INNER_LEFT", "INNER_RIGHT", "OBSERVE"]
