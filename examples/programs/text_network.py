"""A language model, written for one process."""

import torch
from torch.nn.functional import scaled_dot_product_attention


class Block(torch.nn.Module):
    """Attention to the tokens before, and a perceptron."""

    def __init__(self, features, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, torch.nn.Dropout(dropout)
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(features), torch.nn.LayerNorm(features)
        self.queries, self.keys, self.values, self.result = (torch.nn.Linear(features, features) for _ in range(4))
        self.perceptron = torch.nn.Sequential(
            torch.nn.Linear(features, 4 * features), torch.nn.GELU(), torch.nn.Linear(4 * features, features)
        )

    def forward(self, x):
        y = self.norm_1(x)
        parts = (linear(y).unflatten(-1, (self.heads, -1)) for linear in (self.queries, self.keys, self.values))
        y = scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        x = x + self.dropout(self.result(y.transpose(1, 2).flatten(-2)))
        return x + self.dropout(self.perceptron(self.norm_2(x)))


class GPT(torch.nn.Module):
    """The scores of the next token, for each token.

    Source: A. Radford, J. Wu, R. Child et al., "Language Models are Unsupervised Multitask Learners" (2019).
    """

    def __init__(self, vocabulary, length, features, heads, depth=2, dropout=0.1):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, features), torch.nn.Embedding(length, features)
        self.blocks = torch.nn.ModuleList(Block(features, heads, dropout) for _ in range(depth))
        self.norm, self.head = torch.nn.LayerNorm(features), torch.nn.Linear(features, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
