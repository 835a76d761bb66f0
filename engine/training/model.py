"""A GPT-2 style language model, written to be read from top to bottom.

Tokens become vectors, blocks let them look back and think, a last matrix turns them into a guess of the next token:

    ids (B, T) -> embeddings (B, T, C) -> blocks, each attention + MLP -> logits (B, T, V)

B is the batch (sequences), T the context (tokens), C the width (numbers per token), V the vocabulary, H the heads.
Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), with the layer order
("pre-norm") and the initialisation given there.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.lesson import Settings

INIT_STD = 0.02  # GPT-2's; small enough that a new model's logits are near 0 and its first loss is near ln V


class GPT(nn.Module):
    """The whole model. `settings` gives layers, heads, width, context and dropout; `vocab_size` comes from the tokenizer."""

    def __init__(self, settings: Settings, vocab_size: int) -> None:
        super().__init__()
        self.context = settings.context
        self.token_embedding = nn.Embedding(vocab_size, settings.width)
        self.position_embedding = nn.Embedding(settings.context, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.final_norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, vocab_size, bias=False)
        # One matrix serves both ends ("tied"): reading a token and guessing it need the same knowledge of what it
        # means, and in a small model the vocabulary would otherwise hold most of the parameters.
        self.head.weight = self.token_embedding.weight
        self._initialise(settings.layers)

    def _initialise(self, layers: int) -> None:
        """Draw every weight from torch's global generator, always in the same order: one seed gives one model."""
        # Every block adds two vectors (attention, MLP) to the stream that runs through the model. Without the smaller
        # start of the matrices that write to it, its variance would grow with the number of layers.
        residual_std = INIT_STD / math.sqrt(2 * layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 1:
                nn.init.ones_(parameter)  # LayerNorm's scale
            else:
                nn.init.normal_(parameter, std=residual_std if name.endswith("to_stream.weight") else INIT_STD)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for the token after each of `ids` (B, T). ValueError if T is over the context."""
        length = ids.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens do not fit into a context of {self.context}")
        positions = torch.arange(length, device=ids.device)
        stream = self.token_embedding(ids) + self.position_embedding(positions)  # (B, T, C) + (T, C)
        stream = self.dropout(stream)
        for block in self.blocks:
            stream = block(stream)  # (B, T, C)
        return self.head(self.final_norm(stream))  # (B, T, V)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token of `targets` (B, T), the ids shifted by one: a scalar."""
        logits = self(ids)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # (B·T, V) against (B·T,)

    def parameter_count(self) -> int:
        """Trainable numbers; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Block(nn.Module):
    """One layer: every token looks back at the others (attention), then thinks by itself (MLP)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(settings.width)
        self.attention = CausalSelfAttention(settings)
        self.mlp_norm = nn.LayerNorm(settings.width)
        self.mlp = MLP(settings)

    def forward(self, stream: Tensor) -> Tensor:
        # The norm stands before each part and not after it, so that the stream itself is only ever added to: gradients
        # reach the first layer unscaled, and training is stable without a long warmup.
        stream = stream + self.attention(self.attention_norm(stream))  # (B, T, C)
        return stream + self.mlp(self.mlp_norm(stream))  # (B, T, C)


class CausalSelfAttention(nn.Module):
    """Each token gathers from itself and earlier ones: softmax(q·k / sqrt(C/H)) weights a mean of their values.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.from_stream = nn.Linear(settings.width, 3 * settings.width)  # queries, keys and values in one product
        self.to_stream = nn.Linear(settings.width, settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.from_stream(x).split(width, dim=2)  # each (B, T, C)
        by_head = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(by_head).transpose(1, 2) for part in (query, key, value))  # (B, H, T, C/H)
        # is_causal hides later tokens. torch's own function instead of three lines of softmax: it never stores the
        # (B, H, T, T) table of weights, and gives the same numbers up to rounding.
        # No dropout on the weights (GPT-2 had it): it would force the slow path that does store them, and the two
        # other dropouts of a block are enough.
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (B, H, T, C/H)
        gathered = gathered.transpose(1, 2).reshape(batch, length, width)  # (B, T, C)
        return self.dropout(self.to_stream(gathered))


class MLP(nn.Module):
    """Four times wider inside, as in GPT-2: most of a model's parameters, and most of what it knows, sit here."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.expand = nn.Linear(settings.width, 4 * settings.width)
        self.to_stream = nn.Linear(4 * settings.width, settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.expand(x), approximate="tanh")  # (B, T, 4C); GPT-2 used the tanh form
        return self.dropout(self.to_stream(hidden))  # (B, T, C)
