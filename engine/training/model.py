"""A GPT, written to be read from top to bottom.

Tokens become vectors, blocks let them look back and think, a last matrix turns them into a guess of the next token:

    ids (B, T) -> embeddings (B, T, C) -> blocks, each attention + MLP -> logits (B, T, V)

B is the batch (sequences), T the context (tokens), C the width (numbers per token), V the vocabulary, H the heads.
By default it is GPT-2's shape: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Settings
turn parts into those of Llama: Touvron et al. (2023), arXiv 2302.13971.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.lesson import Settings


class GPT(nn.Module):
    """The whole model. `settings` gives its shape; `vocab_size` comes from the tokenizer."""

    def __init__(self, settings: Settings, vocab_size: int) -> None:
        super().__init__()
        self.context = settings.context
        self.token_embedding = nn.Embedding(vocab_size, settings.width)
        # With rope, positions enter inside attention, and no table of them is learned.
        learned = settings.position == "learned"
        self.position_embedding = nn.Embedding(settings.context, settings.width) if learned else None
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.final_norm = make_norm(settings)
        self.head = nn.Linear(settings.width, vocab_size, bias=False)
        if settings.tied:
            # One matrix serves both ends: reading a token and guessing it need the same knowledge of what it means, and
            # in a small model the vocabulary would otherwise hold most of the parameters.
            self.head.weight = self.token_embedding.weight
        self._initialise(settings)

    def _initialise(self, settings: Settings) -> None:
        """Draw every weight from torch's global generator, always in the same order: one seed gives one model."""
        # Every block adds two vectors (attention, MLP) to the stream that runs through the model. Without the smaller
        # start of the matrices that write to it, its variance would grow with the number of layers.
        residual_std = settings.init_std / math.sqrt(2 * settings.layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 1:
                nn.init.ones_(parameter)  # a norm's scale
            else:
                writes_to_stream = name.endswith("to_stream.weight")
                nn.init.normal_(parameter, std=residual_std if writes_to_stream else settings.init_std)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) for the token after each of `ids` (B, T). ValueError if T is over the context."""
        length = ids.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens do not fit into a context of {self.context}")
        stream = self.token_embedding(ids)  # (B, T, C)
        if self.position_embedding is not None:
            stream = stream + self.position_embedding(torch.arange(length, device=ids.device))  # + (T, C)
        stream = self.dropout(stream)
        for block in self.blocks:
            stream = block(stream)  # (B, T, C)
        return self.head(self.final_norm(stream))  # (B, T, V)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token of `targets` (B, T), the ids shifted by one: a scalar."""
        logits = self(ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())  # (B·T, V) against (B·T,)

    def parameter_count(self) -> int:
        """Trainable numbers; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Block(nn.Module):
    """One layer: every token looks back at the others (attention), then thinks by itself (MLP)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.attention_norm = make_norm(settings)
        self.attention = CausalSelfAttention(settings)
        self.mlp_norm = make_norm(settings)
        self.mlp = SwiGLU(settings) if settings.mlp == "swiglu" else MLP(settings)

    def forward(self, stream: Tensor) -> Tensor:
        # The norm stands before each part and not after it, so that the stream itself is only ever added to: gradients
        # reach the first layer unscaled, and training is stable without a long warmup.
        stream = stream + self.attention(self.attention_norm(stream))  # (B, T, C)
        return stream + self.mlp(self.mlp_norm(stream))  # (B, T, C)


class CausalSelfAttention(nn.Module):
    """Each token gathers from itself and earlier ones: softmax(q·k / sqrt(C/H)) weights a mean of their values.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.2. With kv_heads, several query heads share one head of
    keys and values: Ainslie et al., "GQA" (2023), arXiv 2305.13245.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads, self.kv_heads = settings.heads, settings.kv_heads or settings.heads
        self.head_width = settings.width // settings.heads
        rows = (self.heads + 2 * self.kv_heads) * self.head_width
        self.from_stream = nn.Linear(settings.width, rows, settings.bias)  # queries, keys and values in one product
        self.to_stream = nn.Linear(settings.width, settings.width, settings.bias)
        self.dropout = nn.Dropout(settings.dropout)
        self.rope_theta = settings.rope_theta if settings.position == "rope" else None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        widths = [heads * self.head_width for heads in (self.heads, self.kv_heads, self.kv_heads)]
        parts = self.from_stream(x).split(widths, dim=2)  # queries (B, T, C), keys and values (B, T, C · KV / H)
        query, key, value = (
            part.view(batch, length, -1, self.head_width).transpose(1, 2) for part in parts
        )  # (B, H or KV, T, C/H)
        if self.rope_theta:
            query, key = rotated(query, self.rope_theta), rotated(key, self.rope_theta)
        # is_causal hides later tokens. torch's own function instead of three lines of softmax: it never stores the
        # (B, H, T, T) table of weights, and gives the same numbers up to rounding.
        # No dropout on the weights (GPT-2 had it): it would force the slow path that does store them, and the two
        # other dropouts of a block are enough.
        shared = self.kv_heads != self.heads
        gathered = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shared
        )  # (B, H, T, C/H)
        gathered = gathered.transpose(1, 2).reshape(batch, length, width)  # (B, T, C)
        return self.dropout(self.to_stream(gathered))


def rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary positions: pair i of the token at position t is turned by the angle t / theta^(2i/D). x is (B, H, T, D).

    The product of a query and a key then depends on how far apart they are, not on where they stand.
    Su et al., "RoFormer" (2021), arXiv 2104.09864. The pairs are (i, i + D/2), as in Llama's code, not (2i, 2i + 1).
    """
    length, size = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, size, 2, device=x.device) / size)  # (D/2,)
    angle = torch.outer(torch.arange(length, device=x.device), frequency)  # (T, D/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # each (B, H, T, D/2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class MLP(nn.Module):
    """Four times wider inside, as in GPT-2: most of a model's parameters, and most of what it knows, sit here."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        inner = settings.mlp_width or 4 * settings.width
        # GPT-2 used the tanh form (Hendrycks & Gimpel 2016, arXiv 1606.08415); the exact one differs in the fourth digit,
        # and on a CPU it makes a step about 7 % faster.
        self.approximate = "tanh" if settings.mlp == "gelu" else "none"
        self.expand = nn.Linear(settings.width, inner, settings.bias)
        self.to_stream = nn.Linear(inner, settings.width, settings.bias)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.expand(x), approximate=self.approximate)  # (B, T, 4C)
        return self.dropout(self.to_stream(hidden))  # (B, T, C)


class SwiGLU(nn.Module):
    """An MLP whose inner numbers are switched by a second matrix: Shazeer, "GLU Variants" (2020), arXiv 2002.05202."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        inner = settings.mlp_width or 4 * settings.width
        self.gate = nn.Linear(settings.width, inner, settings.bias)
        self.expand = nn.Linear(settings.width, inner, settings.bias)
        self.to_stream = nn.Linear(inner, settings.width, settings.bias)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.gate(x)) * self.expand(x)  # (B, T, inner)
        return self.dropout(self.to_stream(hidden))  # (B, T, C)


def make_norm(settings: Settings) -> nn.Module:
    """Each token's vector brought to one size. "none" is there to be seen failing."""
    match settings.norm:
        case "layer":  # mean 0 and variance 1: Ba et al. (2016), arXiv 1607.06450
            return nn.LayerNorm(settings.width, bias=settings.bias)
        case "rms":  # root mean square 1, the mean left as it is: Zhang & Sennrich (2019), arXiv 1910.07467
            return nn.RMSNorm(settings.width, eps=1e-6)
        case "none":
            return nn.Identity()
