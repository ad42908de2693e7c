"""Create the networks that are tuned and compared as a whole, each by a function of the batch size.

Inputs: the batch size, for some also image size, layers or width. Output: (module in eval mode, example inputs).
Networks are written out here, or created from a configuration of `transformers` in the published sizes. Weights are
random and seeded, since latency does not depend on them. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from felixlike.errors import MissingDependency

Model = tuple[nn.Module, tuple[Tensor, ...]]
"""A module in eval mode and its example inputs."""

_TOKENS = 100
"""Length of a sequence, in tokens."""


class Output(nn.Module):
    """Return one field of the output of a transformers model. more: tensors passed as further arguments."""

    def __init__(self, model: Any, field: str, **more: Tensor) -> None:
        super().__init__()
        self.model = model
        self.field = field
        self.names = list(more)
        for name, tensor in more.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Any:
        """Return the field of the model's output."""
        return getattr(self.model(x, **{name: getattr(self, name) for name in self.names}), self.field)


def resnet50(batch: int = 1, size: int = 224) -> Model:
    """Create ResNet-50 on images of 3×size×size, with its 1000 classes."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.ResNetConfig(num_labels=1000)  # its defaults are ResNet-50
    return Output(transformers.ResNetForImageClassification(config), "logits").eval(), _images(batch, size)


def mobilenet_v2(batch: int = 1, size: int = 224) -> Model:
    """Create MobileNet-v2 on images of 3×size×size. It returns the pooled output."""
    transformers = _transformers()
    torch.manual_seed(0)
    model = transformers.MobileNetV2Model(transformers.MobileNetV2Config())
    return Output(model, "pooler_output").eval(), _images(batch, size)


def vit_b16(batch: int = 1, layers: int = 12, size: int = 224) -> Model:
    """Create ViT-B/16 on images of 3×size×size. It returns last_hidden_state."""
    transformers = _transformers()
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=layers, image_size=size))
    return Output(model, "last_hidden_state").eval(), _images(batch, size)


def gpt2(batch: int = 1, layers: int = 12) -> Model:
    """Create the smallest GPT-2 on 100 tokens. It returns last_hidden_state."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, use_cache=False)
    ids = torch.randint(0, config.vocab_size, (batch, _TOKENS))
    mask = _causal(_TOKENS)  # without it, transformers detects packed sequences in every call
    return Output(transformers.GPT2Model(config), "last_hidden_state", attention_mask=mask).eval(), (ids,)


def resnet18(batch: int = 1, size: int = 224) -> Model:
    """Create ResNet-18 (2 basic blocks each of 64, 128, 256, 512 channels) on images of 3×size×size; pooled output."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return Output(transformers.ResNetModel(config), "pooler_output").eval(), _images(batch, size)


def bert(batch: int = 1, layers: int = 2, hidden: int = 256, length: int = 64, heads: int = 4) -> Model:
    """Create a BERT encoder, small by default, on int64[batch, length] token ids. It returns last_hidden_state."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    ids = torch.randint(0, config.vocab_size, (batch, length))
    return Output(transformers.BertModel(config), "last_hidden_state").eval(), (ids,)


def bert_base(batch: int = 1, layers: int = 12) -> Model:
    """Create BERT-base on 128 tokens. It returns last_hidden_state."""
    return bert(batch, layers, hidden=768, length=128, heads=12)


def whisper_encoder(batch: int = 1, layers: int = 4) -> Model:
    """Create the encoder of Whisper-tiny on 30 seconds of sound, 80 × 3000. It returns last_hidden_state."""
    transformers = _transformers()
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=layers, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80
    )
    encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    return Output(encoder, "last_hidden_state").eval(), (torch.randn(batch, 80, 3000),)


class Llama(nn.Module):
    """LLaMA blocks with a causal mask on vectors of tokens, without embedding and head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        modeling = _transformers().models.llama.modeling_llama
        self.blocks = nn.ModuleList(modeling.LlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = modeling.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.angles = modeling.LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of the tokens after the last block. x: float32[batch, tokens, hidden]."""
        positions = torch.arange(x.shape[1])[None]
        angles = self.angles(x, positions)
        mask = _causal(x.shape[1]).to(x.dtype)
        for block in self.blocks:
            x = block(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        normed: Tensor = self.norm(x)
        return normed


def llama(batch: int = 1, layers: int | None = None, hidden: int = 4096) -> Model:
    """Create blocks of LLaMA-7B (hidden size 4096, 32 heads, intermediate size 11008) on vectors of 100 tokens.

    layers: number of blocks; None for as many as `llama_layers` returns.
    """
    transformers = _transformers()
    torch.manual_seed(0)
    intermediate_size = 11008 * hidden // 4096
    count = llama_layers() if layers is None else layers
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate_size,
        num_attention_heads=max(1, hidden // 128),
        num_key_value_heads=max(1, hidden // 128),
        num_hidden_layers=count,
        attn_implementation="eager",
    )
    return Llama(config).eval(), (torch.randn(batch, _TOKENS, hidden),)


_LAYER_BYTES = 4 * (4 * 4096**2 + 3 * 4096 * 11008)
"""Bytes of one block's float32 weights."""

_COPIES = 18
"""Copies of the weights in memory at a time: up to 13 in the processes of the sides, of which some hold packed weights
beside the original, and 5 while one of them imports, exports or compiles.
"""

_MOST_LAYERS = 2
"""Upper limit on blocks: a shared library of 2 GiB or more, constants included, cannot be linked."""


def llama_layers() -> int:
    """Return the number of blocks that fit into this machine's memory, between 1 and 2."""
    from felixlike.hardware import host_device

    return max(1, min(_MOST_LAYERS, host_device().memory_bytes // (_COPIES * _LAYER_BYTES)))


class _Block3d(nn.Module):
    """A residual block of two 3×3×3 convolutions."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution3d(in_channels, out_channels, stride),
            nn.ReLU(inplace=True),
            *_convolution3d(out_channels, out_channels, 1),
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.beside = (
            nn.Identity() if same_shape else nn.Sequential(*_convolution3d(in_channels, out_channels, stride, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return torch.relu(self.body(x) + self.beside(x))


def _convolution3d(in_channels: int, out_channels: int, stride: int, size: int = 3) -> tuple[nn.Module, nn.Module]:
    """Create a 3-d convolution without bias, and its batch norm."""
    return nn.Conv3d(in_channels, out_channels, size, stride, size // 2, bias=False), nn.BatchNorm3d(out_channels)


def r3d_18(batch: int = 1, frames: int = 16, size: int = 112) -> Model:
    """Create R3D-18 (Tran et al., 2018) on clips of 3×16×112×112 by default, with the 400 classes of Kinetics."""
    torch.manual_seed(0)
    parts: list[nn.Module] = [
        nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
        nn.BatchNorm3d(64),
        nn.ReLU(inplace=True),
    ]
    in_channels = 64
    for out_channels in (64, 128, 256, 512):
        parts += [
            _Block3d(in_channels, out_channels, 1 if out_channels == 64 else 2),
            _Block3d(out_channels, out_channels, 1),
        ]
        in_channels = out_channels
    parts += [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400)]
    return nn.Sequential(*parts).eval(), (torch.randn(batch, 3, frames, size, size),)


def dcgan(batch: int = 1, width: int = 1024) -> Model:
    """Create DCGAN's generator (Radford et al., 2016): 100 numbers → 1024 channels of 4×4 → an image of 3×64×64."""
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.ConvTranspose2d(100, width, 4, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for out_channels in (width // 2, width // 4, width // 8):
        parts += [
            nn.ConvTranspose2d(out_channels * 2, out_channels, 4, 2, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        ]
    parts += [nn.ConvTranspose2d(width // 8, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*parts).eval(), (torch.randn(batch, 100, 1, 1),)


class _LastStep(nn.Module):
    """An LSTM that returns the output of the last step."""

    def __init__(self, wide: int, layers: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(wide, wide, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last step's output."""
        steps: Tensor = self.cells(x)[0]
        return steps[:, -1]


def lstm(batch: int = 1, wide: int = 256, layers: int = 2, steps: int = 32) -> Model:
    """Create an LSTM of 2 layers of width 256 on 32 steps, by default."""
    torch.manual_seed(0)
    return _LastStep(wide, layers).eval(), (torch.randn(batch, steps, wide),)


class _Tagger(nn.Module):
    """A bidirectional GRU that gives each token scores of tags."""

    def __init__(self, words: int, wide: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.cells = nn.GRU(wide, wide, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * wide, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores. tokens: int64[batch, length]."""
        scores: Tensor = self.tags(self.cells(self.words(tokens))[0])
        return scores


def gru_tagger(batch: int = 1, wide: int = 128, length: int = 32) -> Model:
    """Create a tagger of sentences of 32 tokens: embedding, a bidirectional GRU of width 128, scores of 17 tags."""
    torch.manual_seed(0)
    return _Tagger(10_000, wide, 17).eval(), (torch.randint(0, 10_000, (batch, length)),)


class _UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) with padded convolutions and batch norm."""

    def __init__(self, channels: int, depth: int, classes: int) -> None:
        super().__init__()
        wide = [channels * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(map(_double_convolution, [3, *wide], wide))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * out, out, 2, 2) for out in reversed(wide[:-1]))
        self.joined = nn.ModuleList(_double_convolution(2 * out, out) for out in reversed(wide[:-1]))
        self.classes = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes for each pixel."""
        skipped = []
        for block in self.down[:-1]:
            skipped.append(block(x))
            x = nn.functional.max_pool2d(skipped[-1], 2)
        x = self.down[-1](x)
        for up, joined, beside in zip(self.up, self.joined, reversed(skipped), strict=True):
            x = joined(torch.cat([beside, up(x)], 1))
        scores: Tensor = self.classes(x)
        return scores


def _double_convolution(in_channels: int, out_channels: int) -> nn.Module:
    """Create two 3×3 convolutions with batch norm and ReLU."""
    parts: list[nn.Module] = []
    for channels in (in_channels, out_channels):
        parts += [nn.Conv2d(channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*parts)


def unet(batch: int = 1, size: int = 128, channels: int = 32) -> Model:
    """Create a U-Net of 5 levels (32 to 512 channels) and 2 classes on images of 3×128×128, by default."""
    torch.manual_seed(0)
    return _UNet(channels, depth=4, classes=2).eval(), _images(batch, size)


_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of VGG-16's convolutions; 0 is a pooling layer."""


def vgg16(batch: int = 1, size: int = 224, wide: int = 4096) -> Model:
    """Create VGG-16 (Simonyan and Zisserman, 2015) on images of 3×size×size, with its 1000 classes."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    in_channels = 3
    for channels in _VGG16:
        if channels:
            parts += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.ReLU()]
            in_channels = channels
        else:
            parts.append(nn.MaxPool2d(2))
    side = size // 2 ** _VGG16.count(0)
    parts += [nn.Flatten(), nn.Linear(512 * side * side, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(wide, 1000)).eval(), _images(batch, size)


class _Fire(nn.Module):
    """SqueezeNet's block: a 1×1 convolution, and a 1×1 and a 3×3 one on its output."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(in_channels, squeezed, 1), nn.ReLU())
        self.one = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        self.three = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        squeezed = self.squeeze(x)
        return torch.cat([self.one(squeezed), self.three(squeezed)], 1)


def squeezenet(batch: int = 1, size: int = 224) -> Model:
    """Create SqueezeNet 1.0 (Iandola et al., 2016) on images of 3×size×size, with its 1000 classes."""
    torch.manual_seed(0)
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool, _Fire(96, 16, 64), _Fire(128, 16, 64)]
    parts += [_Fire(128, 32, 128), pool, _Fire(256, 32, 128), _Fire(256, 48, 192), _Fire(384, 48, 192)]
    parts += [_Fire(384, 64, 256), pool, _Fire(512, 64, 256), nn.Conv2d(512, 1000, 1), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval(), _images(batch, size)


def mlp(batch: int = 8) -> Model:
    """Create an MLP 128 → 256 → 10 with ReLU and softmax."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10), nn.Softmax(-1))
    return model.eval(), (torch.randn(batch, 128),)


NETWORKS: dict[str, Callable[..., Model]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "r3d_18": r3d_18,
    "unet": unet,
    "dcgan": dcgan,
    "vit_b16": vit_b16,
    "bert_base": bert_base,
    "whisper_encoder": whisper_encoder,
    "llama": llama,
    "gpt2": gpt2,
    "lstm": lstm,
    "gru_tagger": gru_tagger,
    "mlp": mlp,
}
"""Networks that `felixlike bench networks` measures by default. Each function takes batch=."""

SMALL: dict[str, Callable[..., Model]] = {"bert": bert, "vgg16": vgg16, "squeezenet": squeezenet}
"""Networks that it measures only if named."""


def _causal(tokens: int) -> Tensor:
    """Return the float32[1, 1, tokens, tokens] mask that is added to scores so that no token sees later ones."""
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return torch.zeros(tokens, tokens).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


def _images(batch: int, size: int) -> tuple[Tensor]:
    """Return random images of 3×size×size as the only input."""
    return (torch.randn(batch, 3, size, size),)


def _transformers() -> Any:
    """Import transformers. Raise MissingDependency if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise MissingDependency(
            "this network requires transformers",
            where="networks",
            remedy='pip install "felixlike[demo]"',
        ) from None
    return transformers
