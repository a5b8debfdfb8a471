"""A GPT on sequences that are split over the ranks, and its sequential twin.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

import torch
import torch.nn.functional as F

import distdl.nn as dnn


def by_heads(x, heads):
    """(batch, tokens, features) as (batch, heads, tokens, features of a head)."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


class SequentialBlock(torch.nn.Module):
    """Causal attention, then two layers for each token."""

    def __init__(self, features, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(features), torch.nn.LayerNorm(features)
        self.qkv, self.out = torch.nn.Linear(features, 3 * features), torch.nn.Linear(features, features)
        self.wide, self.narrow = torch.nn.Linear(features, 4 * features), torch.nn.Linear(4 * features, features)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (by_heads(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class SequentialGPT(torch.nn.Module):
    """In one process: the scores of the next token."""

    def __init__(self, tokens=50, features=24, heads=3, layers=2, longest=64, dropout=0.0):
        super().__init__()
        self.tokens = torch.nn.Embedding(tokens, features)
        self.places = torch.nn.Embedding(longest, features)
        self.blocks = torch.nn.Sequential(*(SequentialBlock(features, heads, dropout) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(features)
        self.head = torch.nn.Linear(features, tokens, bias=False)

    def forward(self, tokens, places):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


class Block(torch.nn.Module):
    """The same block with sequences split over P_x; attention has the heads as a dimension, on P_heads."""

    def __init__(self, P_x, P_heads, features, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = dnn.DistributedLayerNorm(P_x, features), dnn.DistributedLayerNorm(P_x, features)
        self.qkv = dnn.DistributedLinear(P_x, features, 3 * features)
        self.out = dnn.DistributedLinear(P_x, features, features)
        self.wide = dnn.DistributedLinear(P_x, features, 4 * features)
        self.narrow = dnn.DistributedLinear(P_x, 4 * features, features)
        self.attend = dnn.DistributedScaledDotProductAttention(P_heads, is_causal=True)
        self.dropout = dnn.DistributedDropout(P_x, dropout)

    def forward(self, x):
        q, k, v = (by_heads(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = self.attend(q, k, v)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class GPT(torch.nn.Module):
    """On P_x of shape [batch, sequence, 1]; tokens and places come in blocks of its first two dimensions."""

    def __init__(self, P_x, P_tokens, P_heads, tokens=50, features=24, heads=3, layers=2, longest=64, dropout=0.0):
        super().__init__()
        self.tokens = dnn.DistributedEmbedding(P_tokens, tokens, features)
        self.places = dnn.DistributedEmbedding(P_tokens, longest, features)
        self.blocks = torch.nn.Sequential(*(Block(P_x, P_heads, features, heads, dropout) for _ in range(layers)))
        self.norm = dnn.DistributedLayerNorm(P_x, features)
        self.head = dnn.DistributedLinear(P_x, features, tokens, bias=False)

    def forward(self, tokens, places):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))
