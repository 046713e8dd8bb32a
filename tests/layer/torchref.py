"""PyTorch in float64 as the judge: the same layer by nn.functional, frame by frame."""
import numpy as np
import torch
import torch.nn.functional as F

import layerlib as nct

torch.set_num_threads(1)
ACT = {
    "none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "elu": F.elu,
}


def conv(layer, x, pads=None):
    """conv1d + bias of one frame x (C_in, T) in float64 -> (C_out, T_out)."""
    p = layer.p
    left, right = pads or (p.pad_left, p.pad_right)
    mode = nct.PADDING_MODES[p.padding_mode]
    x = torch.from_numpy(np.asarray(x, np.float64))[None]
    x = F.pad(x, (left, right), mode="constant" if mode == "zeros" else mode)
    weight = torch.from_numpy(layer.f32("weight", None).reshape(layer.weight.shape))
    bias = torch.from_numpy(layer.f32("bias", 0.0))
    return F.conv1d(x, weight, bias, p.stride, 0, p.dilation, p.groups)[0].numpy()


def norm_act(layer, y):
    """GroupNorm and activation of conv outputs (C_out, T_out)."""
    p = layer.p
    # torch.group_norm: F.group_norm refuses one value per group, the operator gives beta.
    z = torch.group_norm(torch.from_numpy(y)[None], p.num_groups, torch.from_numpy(layer.f32("gamma", 1.0)),
                         torch.from_numpy(layer.f32("beta", 0.0)), p.eps, False)
    return ACT[nct.ACTIVATIONS[p.activation]](z)[0].numpy()


def forward(layer, x, pads=None):
    """-> (conv outputs, results), both (C_out, T_out) float64."""
    y = conv(layer, x, pads)
    return y, norm_act(layer, y)
