"""Attention and transformers over a split batch and a split sequence."""

import types
import warnings

import torch

import distdl.functional as df
import distdl.nn as dnn
from support.families import Example
from support.misuses.table import (
    Row,
    Wrong,
    not_a_device,
    not_a_dtype,
    not_a_partition,
    not_a_tensor,
    not_an_int,
    not_positive,
)
from support.ranks import job


def scores(shape, seed):
    """Values in [-1, 1] that differ."""
    return torch.sin(3.0 * seed + torch.arange(torch.Size(shape).numel(), dtype=torch.double)).reshape(shape)


def boolean(*shape):
    """A mask with a row that looks at no key."""
    mask = scores(shape, 5) > -0.3
    mask.reshape(-1, shape[-1])[shape[-2] // 2] = False
    return mask


def tokens(batch_first, dims):
    """(batch, sequence) among the axes of P_x, None where there is no batch."""
    if dims == 2:
        return None, 0
    return (0, 1) if batch_first else (1, 0)


def renamed(module, names):
    """The module, called with its tensors by these names."""
    kind = type(module)

    def forward(self, *tensors, **options):
        return kind.forward(self, **dict(zip(names, tensors, strict=True)), **options)

    module.forward = types.MethodType(forward, module)  # which a copy of the module has for itself
    return module


def over_tokens(twin, batch_first, inputs, results, args=(), **options):
    """An example from tensors by name, those that are None left out. `results`: the cuts of the results."""
    inputs = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    first = next(iter(inputs.values()))
    dims = first.dim()
    batch, sequence = tokens(batch_first, dims)
    tokens_cut = (*sorted(axis for axis in (batch, sequence) if axis is not None), None)
    cuts, whole = [], {dims - 1}
    for name, x in inputs.items():
        if "padding" in name:
            cuts.append((sequence,) if x.dim() == 1 else (batch, sequence))
        elif "mask" in name:
            cuts.append((*(None,) * (x.dim() - 2), sequence, None))
            if x.dim() == 3 and batch is not None:
                whole.add(batch)  # its blocks are not those of all heads
        else:
            cuts.append(tokens_cut)
    names = list(inputs)
    renamed(twin(), names)  # a sample of PyTorch's is called as it is

    def layer(twin, P):
        kind = dnn.SEQUENTIAL[type(twin)]
        return renamed(kind.from_sequential(twin, P, **dict(args)), names)

    result_cuts = [tokens_cut if cut == "tokens" else tuple({"batch": batch, "sequence": sequence}.get(c) for c in cut)
             for cut in results]  # fmt: skip
    return Example(
        lambda: renamed(twin(), names),
        lambda: tuple(x.detach().clone() for x in inputs.values()),
        dims,
        tuple(cuts),
        tuple(result_cuts),
        whole=tuple(sorted(whole)),
        layer=layer,
        **options,
    )


def multihead(twin, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, **call):
    """An example with any masks."""
    results = ["tokens"]
    if need_weights:
        heads = [] if call.get("average_attn_weights", True) else [None]
        batch = ["batch"] if query.dim() == 3 else []
        results.append([*batch, *heads, "sequence", None])
    inputs = {
        "query": query,
        "key": key,
        "value": value,
        "key_padding_mask": key_padding_mask,
        "attn_mask": attn_mask,
    }
    return over_tokens(lambda: twin, twin.batch_first, inputs, results, call={"need_weights": need_weights, **call})


def heads(rows=4, columns=4, batch=2, method=None, kdim=None, call=None, masks=(), second=None, **options):
    """MultiheadAttention with query and keys of different lengths."""
    call = call or {}
    options = {"embed_dim": 6, "num_heads": 3, "dtype": torch.float64, "kdim": kdim, "batch_first": True, **options}

    def twin():
        torch.manual_seed(1)
        made = torch.nn.MultiheadAttention(**options)
        torch.nn.init.normal_(made.out_proj.bias) if made.out_proj.bias is not None else None
        return made

    def shaped(n, features):
        if not batch:
            return (n, features)
        return (batch, n, features) if options["batch_first"] else (n, batch, features)

    query = scores(shaped(rows, 6), 1)
    key, value = scores(shaped(columns, kdim or 6), 2), scores(shaped(columns, 6), 3)
    results = ["tokens"]
    if call.get("need_weights", True):
        extra = [] if call.get("average_attn_weights", True) else [None]
        results.append([*(["batch"] if batch else []), *extra, "sequence", None])
    inputs = {"query": query, "key": key, "value": value, **dict(masks)}
    second = call.get("need_weights", True) if second is None else second
    return over_tokens(twin, options["batch_first"], inputs, results, args={"method": method}, call=call, second=second)


def encoder_layer(twin, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
    """An example with any masks."""
    inputs = {"src": src, "src_mask": src_mask, "src_key_padding_mask": src_key_padding_mask}
    return over_tokens(lambda: twin, twin.self_attn.batch_first, inputs, ["tokens"], second=False)


def encoder(twin, src, mask=None, src_key_padding_mask=None, is_causal=None):
    """An example with any masks."""
    inputs = {"src": src, "mask": mask, "src_key_padding_mask": src_key_padding_mask}
    return over_tokens(lambda: twin, twin.layers[0].self_attn.batch_first, inputs, ["tokens"], second=False)


TRANSFORMED = (
    "src",
    "tgt",
    "src_mask",
    "tgt_mask",
    "memory_mask",
    "src_key_padding_mask",
    "tgt_key_padding_mask",
    "memory_key_padding_mask",
)


def transformer(twin, *tensors, **masks):
    """An example with any masks."""
    inputs = {**dict(zip(TRANSFORMED, tensors, strict=False)), **masks}
    return over_tokens(lambda: twin, twin.batch_first, inputs, ["tokens"], second=False)


DECODED = (
    "tgt",
    "memory",
    "tgt_mask",
    "memory_mask",
    "tgt_key_padding_mask",
    "memory_key_padding_mask",
)


def decoder_layer(twin, *tensors, **masks):
    """An example with any masks."""
    inputs = {**dict(zip(DECODED, tensors, strict=False)), **masks}
    return over_tokens(lambda: twin, twin.self_attn.batch_first, inputs, ["tokens"], second=False)


def layers(kind, inputs, method=None, call=None, **options):
    """A layer of a transformer."""
    options = {"d_model": 4, "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, "dtype": torch.float64, **options}

    def twin():
        torch.manual_seed(1)
        with warnings.catch_warnings():  # of a fast path that is not taken
            warnings.simplefilter("ignore")
            made = kind(**options)
        for parameter in made.parameters():
            if parameter.dim() == 1:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        return made

    batch_first = options.get("batch_first", False)
    return over_tokens(twin, batch_first, inputs, ["tokens"], args={"method": method}, call=call or {}, second=False)


def stack(kind, layer, inputs, norm=torch.nn.LayerNorm):
    """A stack of two layers that differ."""

    def twin():
        torch.manual_seed(1)
        sublayer = layer(4, 2, 5, 0.0, dtype=torch.float64)
        plain = {"enable_nested_tensor": False} if kind is torch.nn.TransformerEncoder else {}
        made = kind(sublayer, 2, norm and norm(4, dtype=torch.float64), **plain)
        for parameter in made.parameters():
            torch.nn.init.uniform_(parameter, 0.1, 0.6)
        return made

    return over_tokens(twin, False, inputs, ["tokens"], second=False)


def ignored(*shape):
    """A boolean mask, True for keys that do not count; the first key of each row counts."""
    mask = scores(shape, 5) > 0.2
    mask[..., 0] = False
    return mask


ENCODER, DECODER = torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer
WITHOUT = {"need_weights": False}
PADDING = {"key_padding_mask": ignored(2, 4)}
ROWS = {"attn_mask": ignored(4, 4)}
EXAMPLES = {
    "MultiheadAttention": heads(),
    "MultiheadAttention without weights": heads(call=WITHOUT),
    "MultiheadAttention in a ring": heads(rows=3, columns=5, method="ring", call=WITHOUT),
    "MultiheadAttention in heads, with masks": heads(method="heads", call=WITHOUT, masks=PADDING | ROWS),
    "MultiheadAttention in a ring, with masks": heads(method="ring", call=WITHOUT, masks=PADDING | ROWS),
    "MultiheadAttention, weights of each head": heads(
        call={"average_attn_weights": False}, masks={"attn_mask": scores((4, 4), 6)}, batch_first=False
    ),
    "MultiheadAttention, other keys": heads(rows=3, columns=5, kdim=4, bias=False, call=WITHOUT),
    "MultiheadAttention, further keys": heads(
        add_bias_kv=True, add_zero_attn=True, masks=PADDING, call=WITHOUT, batch_first=False
    ),
    "MultiheadAttention, further keys, weights": heads(add_bias_kv=True, masks=ROWS),
    "MultiheadAttention without batch": heads(batch=0, masks={"key_padding_mask": ignored(4)}),
    "MultiheadAttention causal": heads(
        masks={"attn_mask": torch.ones(4, 4).triu(1).bool()}, call={"is_causal": True, **WITHOUT}
    ),
    "TransformerEncoderLayer": layers(ENCODER, {"src": scores((4, 2, 4), 1)}),
    "TransformerEncoderLayer, masks": layers(
        ENCODER,
        {"src": scores((2, 4, 4), 1), "src_mask": ignored(4, 4), "src_key_padding_mask": ignored(2, 4)},
        batch_first=True,
        norm_first=True,
        activation="gelu",
        bias=False,
    ),
    "TransformerEncoderLayer, causal in a ring": layers(
        ENCODER,
        {"src": scores((4, 4), 1), "src_mask": torch.ones(4, 4).triu(1).bool()},
        method="ring",
        call={"is_causal": True},
    ),
    "TransformerDecoderLayer": layers(DECODER, {"tgt": scores((4, 2, 4), 1), "memory": scores((3, 2, 4), 2)}),
    "TransformerDecoderLayer, masks": layers(
        DECODER,
        {
            "tgt": scores((2, 3, 4), 1),
            "memory": scores((2, 4, 4), 2),
            "tgt_mask": ignored(3, 3),
            "memory_mask": scores((3, 4), 3),
            "memory_key_padding_mask": scores((2, 4), 4),
        },
        batch_first=True,
        norm_first=True,
        activation=torch.nn.functional.silu,
    ),
    "TransformerEncoder": stack(
        torch.nn.TransformerEncoder, ENCODER, {"src": scores((4, 2, 4), 1), "mask": ignored(4, 4)}
    ),
    "TransformerDecoder": stack(
        torch.nn.TransformerDecoder,
        DECODER,
        {"tgt": scores((4, 4), 1), "memory": scores((3, 4), 2), "memory_key_padding_mask": ignored(3)},
        norm=None,
    ),
    "Transformer": layers(
        torch.nn.Transformer,
        {"src": scores((2, 4, 4), 1), "tgt": scores((2, 3, 4), 2), "src_key_padding_mask": ignored(2, 4)},
        batch_first=True,
        num_encoder_layers=1,
        num_decoder_layers=2,
    ),
}
described = {
    "MultiheadAttention": multihead,
    "Transformer": transformer,
    "TransformerEncoder": encoder,
    "TransformerEncoderLayer": encoder_layer,
    "TransformerDecoderLayer": decoder_layer,
}
SAMPLES = {
    "MultiheadAttention": 128,
    "Transformer": 128,
    "TransformerEncoder": 74,
    "TransformerEncoderLayer": 74,
    "TransformerDecoderLayer": 134,
}


def on_tokens(P, dims=3):
    """All ranks, along the sequence."""
    return P.create_cartesian_topology_partition([*[1] * (dims - 2), job.size, 1])


def not_a_probability(name):
    """For a probability."""
    wrong = [Wrong(v, TypeError, name) for v in ("a", None, True, [0.5])]
    return [*wrong, *(Wrong(v, ValueError, name) for v in (-0.1, 1.5, float("nan")))]


def rows() -> dict[str, Row]:
    """In support/misuses/layers.py."""
    method = [Wrong(v, ValueError, "method=") for v in ("rings", 3)]
    products = {
        "P_x": not_a_partition(),
        "dropout_p": not_a_probability("dropout_p="),
        "scale": [Wrong(v, TypeError, "scale=") for v in ("a", [1.0], True)],
        "method": method,
    }
    agreed = {"dropout_p": 0.5, "is_causal": True, "scale": 2.0, "enable_gqa": True, "method": "ring"}
    table = {
        "nn.DistributedScaledDotProductAttention": Row(
            dnn.DistributedScaledDotProductAttention, lambda P: {"P_x": on_tokens(P, 4)}, products, agreed
        )
    }

    def called(P):
        return {**dict.fromkeys(("query", "key", "value"), torch.ones(1, 2, 2, 3)), "P_x": on_tokens(P, 4)}

    table["functional.scaled_dot_product_attention"] = Row(
        df.scaled_dot_product_attention,
        called,
        {
            **products,
            **{name: not_a_tensor() for name in ("query", "key", "value")},
            "attn_mask": [Wrong(v, TypeError, "torch.Tensor") for v in (3, "x")],
        },
        agreed,
    )

    def sizes(*names):
        return {name: [*not_an_int(name)[:3], *not_positive(name, ValueError)] for name in names}

    of_parameters = {"device": not_a_device(), "dtype": not_a_dtype()}
    table["nn.DistributedMultiheadAttention"] = Row(
        dnn.DistributedMultiheadAttention,
        lambda P: {"P_x": on_tokens(P), "embed_dim": 4, "num_heads": 2},
        {
            "P_x": not_a_partition(),
            **sizes("embed_dim", "num_heads"),
            "dropout": not_a_probability("dropout="),
            "kdim": not_an_int("kdim")[:2],
            "vdim": not_an_int("vdim")[:2],
            "method": method,
            **of_parameters,
        },
        {
            "embed_dim": 6, "num_heads": 1, "dropout": 0.5, "bias": False, "add_bias_kv": True, "add_zero_attn": True,
            "kdim": 3, "vdim": 3, "batch_first": True, "dtype": torch.float64, "method": "ring",
        },
    )  # fmt: skip
    layer = {
        "P_x": not_a_partition(),
        "dropout": not_a_probability("dropout="),
        "activation": [Wrong("tanh", ValueError, "activation="), Wrong(3, TypeError, "activation=")],
        "layer_norm_eps": [Wrong(v, TypeError, "layer_norm_eps=") for v in ("a", None)],
        "method": method,
        **sizes("d_model", "nhead", "dim_feedforward"),
        **of_parameters,
    }
    others = {
        "d_model": 8, "nhead": 1, "dim_feedforward": 3, "dropout": 0.5, "activation": "gelu", "layer_norm_eps": 1.0,
        "batch_first": True, "norm_first": True, "bias": False, "dtype": torch.float64, "method": "ring",
    }  # fmt: skip
    for kind in (dnn.DistributedTransformerEncoderLayer, dnn.DistributedTransformerDecoderLayer):
        table[f"nn.{kind.__name__}"] = Row(
            kind, lambda P: {"P_x": on_tokens(P), "d_model": 4, "nhead": 2, "dim_feedforward": 2}, layer, others
        )
    for kind, name, make in (
        (dnn.DistributedTransformerEncoder, "encoder_layer", ENCODER),
        (dnn.DistributedTransformerDecoder, "decoder_layer", DECODER),
    ):
        table[f"nn.{kind.__name__}"] = Row(
            kind,
            lambda P, name=name, make=make: {"P_x": on_tokens(P), name: make(4, 2, 2), "num_layers": 1},
            {
                "P_x": not_a_partition(),
                name: [Wrong(v, TypeError, name) for v in (None, 3, torch.nn.Linear(1, 1))],
                "num_layers": [*not_an_int("num_layers")[:3], *not_positive("num_layers", ValueError)],
                "norm": [Wrong(v, TypeError, "norm=") for v in (3, torch.nn.Linear(1, 1))],
            },
            {"num_layers": 2, "norm": torch.nn.LayerNorm(4)},
            free=("enable_nested_tensor", "mask_check"),
        )
    table["nn.DistributedTransformer"] = Row(
        dnn.DistributedTransformer,
        lambda P: {
            "P_x": on_tokens(P), "d_model": 4, "nhead": 2, "dim_feedforward": 2, "num_encoder_layers": 1,
            "num_decoder_layers": 1,
        },
        {
            **layer,
            **{name: [Wrong(3, TypeError, name)] for name in ("custom_encoder", "custom_decoder")},
            **{name: [*not_an_int("num_layers")[:3], *not_positive("num_layers", ValueError)]
               for name in ("num_encoder_layers", "num_decoder_layers")},
        },
        {**others, "num_encoder_layers": 2, "num_decoder_layers": 2},
    )  # fmt: skip
    return table
