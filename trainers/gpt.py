"""The model: embeddings, pre-norm blocks (`trainers.layers`), final norm, head. GPT-2 and Llama are settings of it.

Initialisation, weight-decay groups and parameter names as in github.com/karpathy/nanoGPT, so that its users find every
tensor where they expect it; `trainers.hf_weights` knows Hugging Face's names. Shapes in comments: B sequences,
T positions, C channels (n_embd), V vocabulary.
The parameter count equals `preflight.params.count_params` (tested): the bill and the model are the same thing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conf.choices import Attention, Positions
from preflight.params import head_dim, n_positions
from preflight.plan import Checkpointing, ModelPlan, RunPlan
from trainers.drawing import Embedding, Linear, draw
from trainers.layers import MLP as MLP
from trainers.layers import Block, make_norm, rotation
from trainers.loss import IGNORED as IGNORED
from trainers.loss import chunked_loss
from trainers.recompute import run_block


class GPT(nn.Module):
    """Token ids in; the loss (with targets) or the next token's logits (without) out."""

    def __init__(
        self,
        model: ModelPlan,
        sequence_length: int,
        checkpointing: Checkpointing = Checkpointing.none,
        attention: Attention = Attention.sdpa,
        loss_chunk_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.sequence_length, self.dropout, self.is_tied = sequence_length, model.dropout, model.tied_head
        self.checkpointing, self.loss_chunk_tokens = checkpointing, loss_chunk_tokens
        self.rotates, self.theta, self.head_dim = model.positions is Positions.rotary, model.rope_theta, head_dim(model)
        parts = {"wte": Embedding(model.vocab_size, model.n_embd)}
        if not self.rotates:
            parts["wpe"] = Embedding(n_positions(model, sequence_length), model.n_embd)
        blocks = nn.ModuleList(Block(model, attention) for _ in range(model.n_layer))
        self.transformer = nn.ModuleDict({**parts, "h": blocks, "ln_f": make_norm(model)})
        self.lm_head = Linear(model.n_embd, model.vocab_size, bias=False)
        self.tie()
        draw(self.named_parameters(), model.n_layer)

    @classmethod
    def of(cls, plan: RunPlan) -> GPT:
        """As the plan wants it; `trainers.build` fills it with other weights, adapters and precision."""
        trainer = plan.trainer
        return cls(
            plan.model,
            trainer.sequence_length,
            trainer.activation_checkpointing,
            trainer.attention,
            trainer.loss_chunk_tokens,
        )

    def tie(self) -> None:
        """One matrix for tokens in and out (Press & Wolf 2017)."""
        if self.is_tied:
            self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """(B, T) -> mean loss, a scalar; without targets -> logits of the last position (B, V)."""
        x, by = self.transformer["wte"](idx), None  # (B, T, C)
        if self.rotates:
            by = rotation(idx.size(1), self.head_dim, self.theta, idx.device)
        else:
            x = x + self.transformer["wpe"](torch.arange(idx.size(1), device=idx.device))  # (T, C)
        x = x.to(self.transformer["ln_f"].weight.dtype)  # frozen tables may have 16 bits, the stream has 32
        x = F.dropout(x, self.dropout, self.training)
        checkpointing = self.checkpointing if self.training else Checkpointing.none
        for block in self.transformer["h"].children():
            x = run_block(block, checkpointing, x, by)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, -1])
        if self.loss_chunk_tokens:
            rows, head = x.flatten(0, 1), self.lm_head
            return chunked_loss(rows, head.weight, targets.flatten(), self.loss_chunk_tokens, rounds=head.rounds)
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
