"""What is a block made of? Norms, rotary positions, attention and the MLP, as `ModelPlan` asks for them one by one.

LayerNorm, GELU and learned positions are GPT-2's (Radford et al. 2019; names as in github.com/karpathy/nanoGPT);
RMSNorm, SwiGLU, rotary positions and grouped heads Llama's (Touvron et al. 2023); squared ReLU after So et al. 2021, a
norm of queries and keys per head as in Qwen3. Shapes in comments: B sequences, T positions, C channels, H heads,
D channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conf.choices import Activation, Attention, Norm
from preflight.params import head_dim, kv_dim, q_dim
from preflight.plan import ModelPlan
from trainers.attention import causal_attention
from trainers.drawing import Linear

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (T, D) each


def make_norm(model: ModelPlan) -> nn.Module:
    """Over the channels of the residual stream."""
    if model.norm is Norm.rmsnorm:
        return nn.RMSNorm(model.n_embd, eps=model.norm_eps)
    return nn.LayerNorm(model.n_embd, eps=model.norm_eps, bias=model.bias)


def rotation(n_positions: int, width: int, theta: float, device: torch.device) -> Rotation:
    """Angles of Su et al. 2021, in the order of GPT-NeoX and Hugging Face: pair i is (channel i, channel i + D/2)."""
    frequencies = theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)  # (D/2,)
    angles = torch.arange(n_positions, device=device, dtype=torch.float32)[:, None] * frequencies  # (T, D/2)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """(B, H, T, D) -> the same, each pair of channels turned by its angle; backward needs the angles alone."""
    cosines, sines = by[0].to(x.dtype), by[1].to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines


class HeadNorm(nn.RMSNorm):
    """Of 16-bit queries and keys: the weight is cast as well, or no fused kernel takes the pair."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class CausalSelfAttention(nn.Module):
    """Every position looks at itself and at what came before."""

    rounds = False  # `trainers.rounding`

    def __init__(self, model: ModelPlan, kind: Attention) -> None:
        super().__init__()
        self.kind, self.dropout, self.head_dim = kind, model.dropout, head_dim(model)
        self.widths = {"query": q_dim(model), "key": kv_dim(model), "value": kv_dim(model)}
        self.c_attn = Linear(model.n_embd, sum(self.widths.values()), bias=model.qkv_bias)  # q, k, v in one matmul
        self.c_proj = Linear(q_dim(model), model.n_embd, bias=model.bias)
        self.q_norm = HeadNorm(self.head_dim, eps=model.norm_eps) if model.qk_norm else None
        self.k_norm = HeadNorm(self.head_dim, eps=model.norm_eps) if model.qk_norm else None

    def forward(self, x: Tensor, by: Rotation | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        B, T, _ = x.shape
        q, k, v = (part.view(B, T, -1, self.head_dim) for part in self.c_attn(x).split([*self.widths.values()], dim=2))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)  # autocast gives norms back in fp32
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (B, H, T, D)
        if by is not None:
            q, k = rotate(q, by), rotate(k, by)
        dropout = self.dropout if self.training else 0.0
        y = causal_attention(self.kind, q, k, v, dropout, rounds=self.rounds)  # heads side by side again
        y = self.c_proj(y)
        return F.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    """Up, activation, down: each position on its own. SwiGLU multiplies what goes up by a gate (Shazeer 2020)."""

    def __init__(self, model: ModelPlan) -> None:
        super().__init__()
        self.activation, self.dropout = model.activation, model.dropout
        if model.activation is Activation.swiglu:
            self.c_gate = Linear(model.n_embd, model.d_ff, bias=model.bias)
        self.c_fc = Linear(model.n_embd, model.d_ff, bias=model.bias)
        self.c_proj = Linear(model.d_ff, model.n_embd, bias=model.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C). Kept for backward: what goes up, the gate, and what c_proj reads."""
        match self.activation:
            case Activation.swiglu:
                hidden = F.silu(self.c_gate(x)) * self.c_fc(x)
            case Activation.relu2:
                hidden = F.relu(self.c_fc(x)).square()
            case Activation.gelu:
                hidden = F.gelu(self.c_fc(x))
            case Activation.gelu_tanh:
                hidden = F.gelu(self.c_fc(x), approximate="tanh")
        return F.dropout(self.c_proj(hidden), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, model: ModelPlan, attention: Attention) -> None:
        super().__init__()
        self.ln_1 = make_norm(model)
        self.attn = CausalSelfAttention(model, attention)
        self.ln_2 = make_norm(model)
        self.mlp = MLP(model)

    def forward(self, x: Tensor, by: Rotation | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attn(self.ln_1(x), by)
        return x + self.mlp(self.ln_2(x))
