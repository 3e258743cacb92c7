"""Fine-tuning of a small GPT on packed conversations, on the CPU, for about a minute.

    dataprep build --kind chat --input chat.jsonl --template chatml --out shards
    python examples/finetune_chat.py shards

A row holds whole conversations. Position ids start anew at each conversation, attention stays
inside it, and only the assistant's tokens have labels. The loss is over those tokens alone.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

import dataprep

__all__ = ["ChatGPT", "main"]


class Block(nn.Module):
    """Self-attention within a conversation, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Map [batch, time, width] to the same shape; `seen` [batch, 1, time, time] is the mask."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.feed(self.norm2(x))


class ChatGPT(nn.Module):
    """Decoder in which conversations of one row do not attend to each other."""

    def __init__(
        self, vocab_size: int, context: int, width: int = 128, heads: int = 4, layers: int = 3
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids: Tensor, position_ids: Tensor, doc_ids: Tensor) -> Tensor:
        """Return logits [batch, time, vocabulary]; both arguments are int64 [batch, time]."""
        together = doc_ids[:, :, None] == doc_ids[:, None, :]
        seen = torch.ones_like(together).tril() & together
        x = self.tokens(ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x, seen[:, None])
        return F.linear(self.norm(x), self.tokens.weight)


def loss_of(model: nn.Module, batch: dict[str, Tensor], reduction: str = "mean") -> Tensor:
    """Return the cross-entropy in nats over the tokens that have a label."""
    logits = model(batch["input_ids"], batch["position_ids"], batch["doc_ids"])
    labels = batch["labels"]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


def main(arguments: list[str] | None = None) -> list[float]:
    """Train; return the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    vocab_size = dataprep.open_dataset(args.shards).manifest.tokens.vocab_size
    rows = dataprep.Packed(
        args.seq_len, algorithm="best-fit", overlong="truncate", position_ids=True, doc_ids=True
    )
    loader = dataprep.create_loader(
        args.shards, "train", batch_size=args.batch_size, rows=rows, seed=0
    )
    model = ChatGPT(vocab_size, args.seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"chance is a loss of {math.log(vocab_size):.2f}")
    losses: list[float] = []
    began = time.perf_counter()
    while True:
        for batch in loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 10 == 0:
                print(f"step {len(losses)}: {sum(losses[-10:]) / 10:.3f}")
            if len(losses) >= args.steps or time.perf_counter() - began > args.seconds:
                return losses


if __name__ == "__main__":
    main()
