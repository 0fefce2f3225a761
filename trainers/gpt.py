"""GPT-2, the whole model in one file: pre-norm blocks, GELU, learned positions, token embedding tied to the head.

Architecture after Radford et al. 2019 (github.com/openai/gpt-2); initialisation, weight-decay groups and parameter
names as in github.com/karpathy/nanoGPT, so that its users and Hugging Face's GPT-2 find every tensor where they expect
it. Shapes in comments: B sequences, T positions, C channels (n_embd), V vocabulary, H heads, D = C / H.
The parameter count equals `preflight.params.count_params` (tested): the bill and the model are the same thing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from preflight.plan import Checkpointing, ModelPlan, TrainerPlan

INIT_STD = 0.02  # Radford et al. 2018, section 4.1
IGNORED = -1  # a target that does not count


class CausalSelfAttention(nn.Module):
    """Every position looks at itself and at what came before."""

    def __init__(self, model: ModelPlan) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.dropout = model.n_head, model.n_kv_head, model.dropout
        self.head_dim = model.n_embd // model.n_head
        self.widths = [n * self.head_dim for n in (model.n_head, model.n_kv_head, model.n_kv_head)]
        self.c_attn = nn.Linear(model.n_embd, sum(self.widths), bias=model.bias)  # q, k, v in one matmul
        self.c_proj = nn.Linear(model.n_embd, model.n_embd, bias=model.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, -1, self.head_dim).transpose(1, 2)  # (B, H, T, D)
            for part in self.c_attn(x).split(self.widths, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q, k, v,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.n_kv_head != self.n_head,
        )  # fmt: skip
        y = self.c_proj(y.transpose(1, 2).reshape(B, T, C))  # heads side by side again
        return F.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    """Up, GELU, down: each position on its own."""

    def __init__(self, model: ModelPlan) -> None:
        super().__init__()
        self.c_fc = nn.Linear(model.n_embd, model.d_ff, bias=model.bias)
        self.c_proj = nn.Linear(model.d_ff, model.n_embd, bias=model.bias)
        self.dropout = model.dropout

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, model: ModelPlan) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(model.n_embd, bias=model.bias)
        self.attn = CausalSelfAttention(model)
        self.ln_2 = nn.LayerNorm(model.n_embd, bias=model.bias)
        self.mlp = MLP(model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Token ids in; the loss (with targets) or the next token's logits (without) out."""

    def __init__(
        self, model: ModelPlan, sequence_length: int, checkpointing: Checkpointing = Checkpointing.none
    ) -> None:
        super().__init__()
        self.sequence_length, self.dropout = sequence_length, model.dropout
        self.recompute_blocks = checkpointing is Checkpointing.full
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(model.vocab_size, model.n_embd),
            "wpe": nn.Embedding(sequence_length, model.n_embd),
            "h": nn.ModuleList(Block(model) for _ in range(model.n_layer)),
            "ln_f": nn.LayerNorm(model.n_embd, bias=model.bias),
        })  # fmt: skip
        self.lm_head = nn.Linear(model.n_embd, model.vocab_size, bias=False)
        if model.tied_head:
            self.transformer["wte"].weight = self.lm_head.weight  # Press & Wolf 2017
        self._initialise(model.n_layer)

    def _initialise(self, n_layer: int) -> None:
        """N(0, 0.02); what writes into the residual stream is divided by sqrt(2 n_layer), as GPT-2 has it."""
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() >= 2:  # LayerNorm weights stay one
                scale = 1 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, mean=0.0, std=INIT_STD * scale)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """(B, T) -> mean loss, a scalar; without targets -> logits of the last position (B, V)."""
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](positions)  # (B, T, C) + (T, C)
        x = F.dropout(x, self.dropout, self.training)
        recompute = self.recompute_blocks and self.training  # keep each block's input, compute the rest twice
        for block in self.transformer["h"].children():
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, -1])
        logits = self.lm_head(x)  # (B, T, V): the largest tensor of all, freed when backward has used it
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=IGNORED)

    @torch.no_grad()
    def generate(self, idx: Tensor, n_new_tokens: int, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
        """(B, T) -> (B, T + n_new_tokens), one sampled token at a time; temperature 0 takes the likeliest."""
        for _ in range(n_new_tokens):
            logits = self(idx[:, -self.sequence_length :]).float()  # (B, V)
            if temperature == 0:
                chosen = logits.argmax(dim=-1, keepdim=True)
            else:
                if top_k is not None:
                    kth = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
                    logits = logits.masked_fill(logits < kth, -math.inf)
                chosen = torch.multinomial(F.softmax(logits / temperature, dim=-1), num_samples=1)
            idx = torch.cat((idx, chosen), dim=1)
        return idx


def make_optimizer(model: GPT, trainer: TrainerPlan) -> torch.optim.AdamW:
    """AdamW; matrices and embeddings decay, biases and norms do not (as nanoGPT). Fused: one kernel for all tensors."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": trainer.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=trainer.learning_rate, betas=(trainer.beta1, trainer.beta2), fused=True)
