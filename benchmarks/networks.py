"""The networks of ``model_families.py``: small ones, by name, each with its family and library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

IMAGE = (3, 32, 32)
STEPS, FEATURES, WORDS = 12, 6, 50


class Network(NamedTuple):
    """One network: how it is built, its family and package, and the shape of an input."""

    family: str
    library: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    vocabulary: int = 0  # Number of words, of networks that read a text.
    warm: bool = True  # Whether it can be trained, so that its normalizations can see a batch.


class Apply(nn.Module):
    """A function of the modules that it is given, by name."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, inputs: Tensor) -> Any:
        return self.function(self, inputs)


def conv(before: int, after: int, kernel: int = 3, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, padding=kernel // 2, **settings)


def around(*middle: nn.Module, channels: int = 8) -> nn.Sequential:
    """Put a convolution before some layers of 8 channels, and a classifier behind them."""
    first = [conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4)]
    return nn.Sequential(*first, *middle, *head)


def unit(before: int = 8, after: int = 8, **settings: Any) -> list[nn.Module]:
    return [conv(before, after, **settings), nn.BatchNorm2d(after), nn.ReLU()]


def _shuffled(self: Any, x: Tensor) -> Tensor:
    x = x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return relu(self.conv(x))


def _tied(self: Any, x: Tensor) -> Tensor:
    return relu(self.conv(relu(self.conv(x))))


def _changed_inside(self: Any, x: Tensor) -> Tensor:
    return self.net(x.sub_(0.5).div_(0.25))


def _in_a_dictionary(self: Any, x: Tensor) -> Tensor:
    act = self.acts["relu"]
    return self.head(act(self.two(act(self.one(x)))).mean((2, 3)))


def _with_auxiliary(self: Any, x: Tensor) -> Tensor:
    hidden = self.body(x)
    if self.training:
        self.extra = self.aux(hidden.mean((2, 3))).sum()
    return self.head(hidden.mean((2, 3)))


def _by_data(self: Any, x: Tensor) -> Tensor:
    hidden = self.one(x)
    if hidden.mean() > 0:
        hidden = hidden + self.two(hidden)
    return hidden


def _kept(self: Any, x: Tensor) -> Tensor:
    self.seen = self.body(x)
    return self.head(self.seen.mean((2, 3)))


def _attended(self: Any, x: Tensor) -> Tensor:
    tokens = self.embed(x).flatten(2).transpose(1, 2)
    tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
    return self.head((tokens + self.mlp(tokens)).mean(1))


def attention(act: nn.Module) -> nn.Module:
    return Apply(
        _attended,
        embed=nn.Conv2d(3, 16, 8, 8),
        attention=nn.MultiheadAttention(16, 2, batch_first=True),
        mlp=nn.Sequential(nn.Linear(16, 32), act, nn.Linear(32, 16)),
        head=nn.Linear(16, 4),
    )


def series(inputs: Tensor) -> Tensor:
    """Return the steps of samples, which the library takes as vectors."""
    return inputs.unflatten(1, (STEPS, FEATURES))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return Apply(
        lambda self, x: self.head(self.body(self.embed(series(x))).mean(1)),
        embed=nn.Linear(FEATURES, 16),
        body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        head=nn.Linear(16, 4),
    )


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    return Apply(
        lambda self, x: self.head(relu(self.hidden(self.body(series(x))[0][:, -1]))),
        body=kind(FEATURES, 24, batch_first=True),
        hidden=nn.Linear(24, 16),
        head=nn.Linear(16, 4),
    )


class Texts(nn.Module):
    """A text by the mean of its words, scored against four words whose embedding is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(WORDS, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(relu(self.hidden(self.embedding(words.long()).mean(1))))[:, :4]


class Fourier(nn.Module):
    """Complex weights on the frequencies of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat) / 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        frequencies = torch.fft.rfft2(self.stem(x))
        mixed = torch.einsum("nchw,cd->ndhw", frequencies, self.weight)
        return self.head(relu(torch.fft.irfft2(mixed)).mean((2, 3)))


def branches(join: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    return Apply(
        lambda self, x: join(self.one(x), self.two(x)),
        one=nn.Sequential(*unit()),
        two=nn.Sequential(*unit()),
    )


def squeeze_and_excitation() -> nn.Module:
    gate = [nn.AdaptiveAvgPool2d(1), conv(8, 4, 1), nn.ReLU(), conv(4, 8, 1), nn.Sigmoid()]
    return Apply(
        lambda self, x: self.body(x) * self.gate(self.body(x)),
        body=nn.Sequential(*unit()),
        gate=nn.Sequential(*gate),
    )


def plain() -> nn.Sequential:
    return around(*unit(), *unit(8, 12), channels=12)


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = plain()
    norm(model[4])
    return model


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(plain())


def scripted() -> nn.Module:
    return torch.jit.trace(plain().eval(), torch.zeros(2, *IMAGE))


def dynamic() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 4))
    return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear})


def answers(wrap: Callable[[Tensor], Any]) -> nn.Module:
    return Apply(lambda self, x: wrap(self.net(x)), net=plain())


def segmentation() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4, 1))


def tv(name: str, **settings: Any) -> nn.Module:
    import torchvision.models as zoo

    return getattr(zoo, name)(weights=None, num_classes=4, **settings)


def tv_basic() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4)


def tv_residual() -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=4, groups=4, width_per_group=4)


def tv_densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(8, (2, 2), 8, num_classes=4)


def tv_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=4)


def tv_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=4)
    model.heads[0].reset_parameters()
    return model


def tv_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=4)


def tv_regnet() -> nn.Module:
    from torchvision.models.regnet import BlockParams, RegNet

    sizes = BlockParams.from_init_params(depth=5, w_0=16, w_a=8.0, w_m=2.0, group_width=8)
    return RegNet(sizes, num_classes=4)


def tv_vgg() -> nn.Module:
    from torchvision.models.vgg import make_layers

    features = make_layers([8, "M", 16, "M", 16, "M"], batch_norm=True)
    head = nn.Sequential(nn.Linear(256, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 4))
    return nn.Sequential(features, nn.Flatten(), head)


def tv_googlenet() -> nn.Module:
    return tv("googlenet", aux_logits=False, init_weights=False)


def ours(name: str) -> nn.Module:
    import fairlib

    return fairlib.build(name, num_classes=4, image_size=32, width=0.5)


def timm(name: str, **settings: Any) -> nn.Module:
    import timm as zoo

    return zoo.create_model(name, num_classes=4, **settings)


def hugging(kind: str, wrapped: bool = True) -> nn.Module:
    import transformers as hf

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 64, "num_labels": 4}
    images = small | {"image_size": 32, "patch_size": 8}
    words = {"vocab_size": WORDS, "max_position_embeddings": 32, "num_labels": 4}
    stages = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 4}
    tiny = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    models = {
        "ViT": lambda: hf.ViTForImageClassification(hf.ViTConfig(**images)),
        "DeiT": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**images)),
        "BERT": lambda: hf.BertForSequenceClassification(hf.BertConfig(**small | words)),
        "DistilBERT": lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(**words, **tiny)
        ),
        "ResNet": lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(**stages, layer_type="basic")
        ),
    }
    model = models[kind]()
    text = "BERT" in kind
    if not wrapped:
        return model
    return Apply(lambda self, x: self.net(x.long() if text else x).logits, net=model)


def _parametrized(name: str) -> Callable[[nn.Module], nn.Module]:
    return getattr(nn.utils.parametrizations, name)


_TORCH: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "convolutions": {
        "plain CNN": plain,
        "concatenation": lambda: around(branches(lambda a, b: torch.cat([a, b], 1)), channels=16),
        "concatenation with itself": lambda: around(
            Apply(lambda self, x: torch.cat([self.net(x)] * 2, 1), net=nn.Sequential(*unit())),
            channels=16,
        ),
        "CReLU": lambda: around(
            Apply(lambda self, x: relu(torch.cat([self.net(x), -self.net(x)], 1)), net=conv(8, 8)),
            channels=16,
        ),
        "a convolution called twice": lambda: around(Apply(_tied, conv=conv(8, 8))),
        "depthwise separable": lambda: around(*unit(groups=8), *unit(kernel=1)),
        "transposed convolution": lambda: around(nn.ConvTranspose2d(8, 8, 2, 2), nn.ReLU()),
        "channel shuffle": lambda: around(Apply(_shuffled, conv=conv(8, 8, groups=2))),
        "squeeze and excitation": lambda: around(squeeze_and_excitation()),
        "GroupNorm": lambda: around(conv(8, 8), nn.GroupNorm(2, 8), nn.ReLU()),
        "InstanceNorm": lambda: around(conv(8, 8), nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
        "normalizes its batch in place": lambda: Apply(_changed_inside, net=plain()),
    },
    "activations": {
        "PReLU": lambda: around(conv(8, 8), nn.PReLU()),
        "ReLU as clamp": lambda: around(
            Apply(lambda self, x: self.net(x).clamp(0), net=conv(8, 8))
        ),
        "ReLU as maximum": lambda: around(
            Apply(lambda self, x: torch.maximum(self.net(x), torch.zeros(())), net=conv(8, 8))
        ),
        "one ReLU in a ModuleDict": lambda: Apply(
            _in_a_dictionary,
            acts=nn.ModuleDict({"relu": nn.ReLU()}),
            one=conv(3, 8),
            two=conv(8, 8),
            head=nn.Linear(8, 4),
        ),
        "gate of chunks": lambda: around(
            Apply(
                lambda self, x: torch.mul(*(self.net(x).chunk(2, 1)[i] for i in (0, 1))),
                net=conv(8, 16),
            )
        ),
    },
    "forward passes": {
        "branch that depends on data": lambda: around(
            Apply(_by_data, one=nn.Sequential(*unit()), two=nn.Sequential(*unit()))
        ),
        "second head in training": lambda: Apply(
            _with_auxiliary,
            body=nn.Sequential(conv(3, 8), *unit()),
            aux=nn.Linear(8, 4),
            head=nn.Linear(8, 4),
        ),
        "keeps its features": lambda: Apply(
            _kept, body=nn.Sequential(conv(3, 8), *unit()), head=nn.Linear(8, 4)
        ),
        "complex weights": Fourier,
    },
    "answers": {
        "a dictionary": partial(answers, lambda logits: {"logits": logits}),
        "a tuple": partial(answers, lambda logits: (logits, None)),
        "an image of logits": segmentation,
        "logits of 1 x 1": partial(answers, lambda logits: logits[:, :, None, None]),
    },
    "reparametrized": {
        "weight_norm": lambda: normed(_parametrized("weight_norm")),
        "spectral_norm": lambda: normed(_parametrized("spectral_norm")),
        "old weight_norm": lambda: normed(nn.utils.weight_norm),
        "old spectral_norm": lambda: normed(nn.utils.spectral_norm),
    },
    "precisions and wrappers": {
        "bfloat16": lambda: plain().bfloat16(),
        "float16": lambda: plain().half(),
        "float64": lambda: plain().double(),
        "channels_last": lambda: plain().to(memory_format=torch.channels_last),
        "traced by fx": traced,
        "torch.compile": lambda: torch.compile(plain(), backend="eager"),
        "DataParallel": lambda: nn.DataParallel(plain()),
        "TorchScript": scripted,
        "dynamic int8 of torch.ao": dynamic,
    },
    "attention": {
        "attention with ReLU": lambda: attention(nn.ReLU()),
        "attention with GELU": lambda: attention(nn.GELU()),
    },
}

_COLD = ("old spectral_norm", "TorchScript", "dynamic int8 of torch.ao")

NETWORKS: dict[str, Network] = {
    name: Network(family, "torch", build, warm=name not in _COLD)
    for family, members in _TORCH.items()
    for name, build in members.items()
}
NETWORKS |= {
    f"{kind.__name__} of series": Network(
        "recurrent", "torch", partial(recurrent, kind), (STEPS * FEATURES,)
    )
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
}
NETWORKS["TransformerEncoder of series"] = Network(
    "attention", "torch", encoder, (STEPS * FEATURES,)
)
NETWORKS["shared embedding of words"] = Network("recurrent", "torch", Texts, (STEPS,), WORDS)
NETWORKS |= {
    f"{name} of fairlib": Network("fairlib", "torch", partial(ours, name))
    for name in ("cnn", "tiny-resnet", "resnet10", "mobilenetv2", "vit-tiny")
}
NETWORKS |= {
    f"{name} of torchvision": Network("torchvision", "torchvision", build)
    for name, build in {
        "ResNet": tv_basic,
        "ResNeXt": tv_residual,
        "VGG": tv_vgg,
        "DenseNet": tv_densenet,
        "SqueezeNet": partial(tv, "squeezenet1_1"),
        "GoogLeNet": tv_googlenet,
        "ShuffleNetV2": partial(tv, "shufflenet_v2_x0_5"),
        "MobileNetV2": partial(tv, "mobilenet_v2", width_mult=0.25),
        "MobileNetV3": partial(tv, "mobilenet_v3_small"),
        "MNASNet": partial(tv, "mnasnet0_5"),
        "EfficientNet-B0": partial(tv, "efficientnet_b0"),
        "RegNet": tv_regnet,
        "ConvNeXt": tv_convnext,
        "ViT": tv_vit,
        "Swin": tv_swin,
    }.items()
}
NETWORKS |= {
    f"{name} of timm": Network("timm", "timm", partial(timm, name, **settings))
    for name, settings in {
        "resnet10t": {},
        "repvgg_a0": {},
        "mobilenetv3_small_050": {},
        "convnext_atto": {},
        "ghostnet_050": {},
        "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2},
    }.items()
}
NETWORKS |= {
    f"{name} of transformers": Network(
        "transformers",
        "transformers",
        partial(hugging, name),
        *(((STEPS,), WORDS) if "BERT" in name else ()),
    )
    for name in ("ViT", "DeiT", "BERT", "DistilBERT", "ResNet")
}
NETWORKS["ViT of transformers, unwrapped"] = Network(
    "transformers", "transformers", partial(hugging, "ViT", wrapped=False)
)
