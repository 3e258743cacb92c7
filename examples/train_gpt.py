"""Training of a small GPT on the CPU from a dataset, for about a minute, with its losses.

    dataprep build --input data.jsonl --out shards
    python examples/train_gpt.py shards
    python examples/train_gpt.py shards --steps 200 --checkpoint gpt.pt    # again to resume

The model is plain PyTorch; dataprep is the one line that makes `loader`. A run that resumes from
its checkpoint has the same losses, bit by bit, as an uninterrupted run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn import functional as F  # noqa: N812 -- its usual name

import dataprep
from dataprep import Loader

__all__ = ["GPT", "Shape", "main"]


Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Size of the model; `context` is in tokens."""

    vocab_size: int
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 4


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each on the normalised residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, time, width] to the same shape."""
        x = x + self.attend(self.norm1(x))
        return x + self.feed(self.norm2(x))

    def attend(self, x: Tensor) -> Tensor:
        """Attend from each position to itself and to earlier positions."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the token embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats of `labels`, given `ids`; both [batch, time]."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def epochs(loader: Loader) -> Iterator[Batch]:
    """Yield batches without end, every epoch in a new order."""
    while True:
        yield from loader


def save(path: Path, **parts: Stateful) -> None:
    """Write the state of each part; a run that is stopped while writing keeps the previous one."""
    beside = path.with_suffix(".new")
    torch.save({name: part.state_dict() for name, part in parts.items()}, beside)
    beside.replace(path)


def resume(path: Path, **parts: Stateful) -> None:
    """Restore the state of each part from `path`, if it exists."""
    if path.exists():
        states = torch.load(path, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(states[name])


def main(arguments: list[str] | None = None) -> list[float]:
    """Train; return the loss of every step."""
    args = parse(arguments)
    torch.manual_seed(args.seed)
    vocab_size = dataprep.open_dataset(args.shards).manifest.tokens.vocab_size
    shape = Shape(vocab_size=vocab_size, context=args.seq_len)
    loader = dataprep.create_loader(
        args.shards, args.split, batch_size=args.batch_size, seq_len=args.seq_len, seed=args.seed
    )
    model = GPT(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size / 1e6:.1f} M parameters; chance is a loss of {math.log(vocab_size):.2f}")
    if args.checkpoint:
        resume(args.checkpoint, model=model, optimizer=optimizer, loader=loader)
    losses = train(model, optimizer, epochs(loader), steps=args.steps, seconds=args.seconds)
    if args.checkpoint:
        save(args.checkpoint, model=model, optimizer=optimizer, loader=loader)
    return losses


def train(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    *,
    steps: int,
    seconds: float,
) -> list[float]:
    """Take `steps` steps, or as many as fit into `seconds`."""
    losses: list[float] = []
    began = time.perf_counter()
    for step, batch in enumerate(itertools.islice(batches, steps)):
        loss = model(batch["input_ids"], batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        passed = time.perf_counter() - began
        if step % 10 == 0:
            print(f"step {step:4}  loss {losses[-1]:6.3f}  {passed:5.1f} s", flush=True)
        if passed > seconds:
            break
    last = losses[-10:]
    print(f"loss {losses[0]:.3f} at first, {sum(last) / len(last):.3f} over the last steps")
    return losses


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options of the example."""
    parser = argparse.ArgumentParser(description="Train a small GPT from dataprep shards.")
    parser.add_argument("shards")
    parser.add_argument("--split", default="train")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoint", type=Path, help="go on from this file, and write it at the end"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
