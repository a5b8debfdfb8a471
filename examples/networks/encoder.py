"""A transformer encoder on sequences that are split over the ranks, and its sequential twin.

Source: A. Vaswani et al., "Attention Is All You Need" (2017).
"""

import torch

import distdl.nn as dnn


class SequentialEncoder(torch.nn.Module):
    """In one process: a score for each token."""

    def __init__(self, tokens=50, features=16, heads=4, layers=2, longest=64):
        super().__init__()
        self.tokens = torch.nn.Embedding(tokens, features)
        self.places = torch.nn.Embedding(longest, features)
        layer = torch.nn.TransformerEncoderLayer(
            features, heads, 4 * features, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(features, tokens)

    def forward(self, tokens, places):
        return self.head(self.encoder(self.tokens(tokens) + self.places(places)))


class Encoder(torch.nn.Module):
    """On P_x of shape [batch, sequence, 1]; tokens and places come in blocks of its first two dimensions."""

    def __init__(self, P_x, P_tokens, tokens=50, features=16, heads=4, layers=2, longest=64):
        super().__init__()
        self.tokens = dnn.DistributedEmbedding(P_tokens, tokens, features)
        self.places = dnn.DistributedEmbedding(P_tokens, longest, features)
        layer = dnn.DistributedTransformerEncoderLayer(
            P_x, features, heads, 4 * features, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = dnn.DistributedTransformerEncoder(P_x, layer, layers)
        self.head = dnn.DistributedLinear(P_x, features, tokens)

    def forward(self, tokens, places):
        return self.head(self.encoder(self.tokens(tokens) + self.places(places)))
