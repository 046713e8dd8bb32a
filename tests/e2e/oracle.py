"""What is right: PyTorch in float64, and the bound of f32 products on it."""
import numpy as np
import torch

import stfile

ACT = {"none": lambda y: y, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
       "mish": torch.nn.functional.mish, "elu": torch.nn.functional.elu,
       "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh")}


class Layer:
    """PyTorch's own modules with a model file's weights, in float64."""

    def __init__(self, path, **params):
        tensors, meta = stfile.read(path)
        meta = {**meta, **{k: str(v) for k, v in params.items()}}
        w = torch.from_numpy(tensors["conv.weight"]).double()
        self.groups = int(meta.get("groups", 1))
        self.stride, self.dilation = int(meta.get("stride", 1)), int(meta.get("dilation", 1))
        padding = meta.get("padding", "0")
        self.conv = torch.nn.Conv1d(w.shape[1] * self.groups, w.shape[0], w.shape[2], stride=self.stride,
                                    padding=padding if padding in ("same", "valid") else int(padding), dilation=self.dilation,
                                    groups=self.groups, bias="conv.bias" in tensors,
                                    padding_mode=meta.get("padding_mode", "zeros")).double()
        self.norm = torch.nn.GroupNorm(int(meta["num_groups"]), w.shape[0], eps=float(meta.get("eps", 1e-5)),
                                       affine="norm.weight" in tensors).double()
        with torch.no_grad():
            self.conv.weight.copy_(w)
            for module, name, key in ((self.conv, "bias", "conv.bias"), (self.norm, "weight", "norm.weight"),
                                      (self.norm, "bias", "norm.bias")):
                if key in tensors:
                    getattr(module, name).copy_(torch.from_numpy(tensors[key]).double())
        self.act = ACT[meta.get("activation", "none")]

    @torch.no_grad()
    def __call__(self, x):
        """x (C, T) -> (y, bound), both (C_out, T_out) float64."""
        v = self.conv(torch.from_numpy(np.array(x, dtype=np.float64))[None])
        z = self.norm(v)
        y = self.act(z)
        gamma = self.norm.weight.abs().clamp(min=1)[:, None] if self.norm.affine else torch.ones(v.shape[1], 1)
        g = v.reshape(self.norm.num_groups, -1)
        rstd = (g.var(1, unbiased=False) + self.norm.eps).rsqrt()
        offset = (g.mean(1).abs() * rstd).clamp(min=1).repeat_interleave(v.shape[1] // self.norm.num_groups)[:, None]
        return y[0].numpy(), (5e-6 * 1.13 * gamma * offset).numpy() * np.ones_like(y[0].numpy())


def assert_close(got, layer, x, scale=1.0, extra=0.0):
    want, bound = layer(x)
    assert got.shape == want.shape, (got.shape, want.shape)
    error = np.abs(got.astype(np.float64) - want)
    bad = ~(error <= scale * bound + extra * np.maximum(1, np.abs(want)))
    assert not bad.any(), f"{bad.sum()} of {bad.size} outside the bound, first at {np.argwhere(bad)[0]}, worst {np.nanmax(error)}"
