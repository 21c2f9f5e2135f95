"""In how many bits a model's weights and its KV cache are kept: by the command's options, or by its `config.json`."""

from math import ceil
from typing import NamedTuple

from gateway.modelfile import ConfigFault, Fields, shown
from policies.capacity import LINEAR, Precision
from policies.layers import Kind

PLAIN = {"bf16": 16.0, "fp16": 16.0, "fp32": 32.0}
EXPERTS: frozenset[Kind] = frozenset({"experts"})  # all that MXFP4 checkpoints quantize
PADDED = 256  # values that kernels round an MXFP4 expert's width up to: vLLM logs 64.4 GiB for gpt-oss-120b, not 60.7
GROUP = 128  # weights that share a scale, where nothing else is said


def grouped(bits: float, group: int) -> float:
    """Add to the bits of a weight its part of a scale in 16 bits and of a zero point."""
    return bits + (16 + bits) / group


QUANTIZED = {"fp8": 8.0, "int8": 8.0, "int4": grouped(4, GROUP), "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16}
"""Bits of a weight, scales included: MXFP4 has one of 8 bits for 32, NVFP4 for 16."""
KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0}
EXCEPT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


class Kept(NamedTuple):
    """How a model is kept."""

    name: str
    precision: Precision
    kv_bytes: float
    """A value."""
    stored_bits: float
    """Of what is not quantized, in the files."""


def kept_of(fields: Fields, dtype: str, kv_dtype: str) -> Kept:
    """Say how the weights and the cache are kept.

    Args:
        fields: Of the language model.
        dtype: One of PLAIN or QUANTIZED, or auto: as the file says; float32 is served in 16 bits, as vLLM does.
        kv_dtype: One of KV_BYTES, or auto: as the file says, else as the model computes.
    Raises:
        ConfigFault: the file's quantization is not known here.
    """
    stored = 32.0 if (fields.word("dtype") or fields.word("torch_dtype")) == "float32" else 16.0
    scheme = fields.inner("quantization_config")
    if dtype in PLAIN:
        name, precision = dtype, Precision(PLAIN[dtype])
    elif dtype in QUANTIZED:
        kinds = EXPERTS if dtype == "mxfp4" and fields.whole("experts", 0) else LINEAR
        name, precision = dtype, Precision(16, padded(fields) if kinds is EXPERTS else QUANTIZED[dtype], kinds)
    elif scheme is None:
        name, precision = "fp16" if fields.word("torch_dtype") == "float16" else "bf16", Precision()
    else:
        name, precision = scheme_of(scheme, fields)
    if kv_dtype in KV_BYTES:
        kv_bytes = KV_BYTES[kv_dtype]
    else:
        kv_bytes = 1.0 if scheme is not None and has_small_cache(scheme) else 4.0 if dtype == "fp32" else 2.0
    return Kept(name, precision, kv_bytes, stored)


def padded(fields: Fields) -> float:
    """Give the bits of a weight of an MXFP4 expert, with what its kernels add."""
    width = fields.whole("expert_size", fields.whole("intermediate_size", PADDED, least=1), least=1)
    return QUANTIZED["mxfp4"] * ceil(width / PADDED) * PADDED / width


def scheme_of(scheme: Fields, fields: Fields) -> tuple[str, Precision]:
    """Read a `quantization_config` of the model that these fields are of.

    Raises:
        ConfigFault: its method is not known here.
    """
    method = scheme.word("quant_method")
    whole = scheme.inner("quantization") or scheme  # ModelOpt keeps it one level down
    algorithm = whole.word("quant_algo").upper()
    kinds = frozenset(LINEAR - {"attention"}) if leaves_attention(whole) else LINEAR
    if method == "mxfp4":
        return "mxfp4 experts", Precision(16, padded(fields), EXPERTS)
    if method in ("fp8", "fbgemm_fp8") or algorithm.startswith("FP8"):
        return "fp8", Precision(16, QUANTIZED["fp8"], kinds)
    if "FP4" in algorithm:
        return "nvfp4", Precision(16, QUANTIZED["nvfp4"], kinds)
    if method in ("awq", "gptq", "auto-round", "auto_round"):
        bits = scheme.whole("bits", 4, least=1)
        group = scheme.raw("group_size")
        size = group if isinstance(group, int) and group > 0 else 1 << 20  # -1: a scale for each column
        return f"{method} int{bits}", Precision(16, grouped(bits, size), kinds)
    if method == "bitsandbytes":
        is_small = scheme.flag("load_in_4bit") or scheme.flag("_load_in_4bit")
        return f"bitsandbytes {'4' if is_small else '8'}-bit", Precision(16, 4.5 if is_small else 8.0, kinds)
    if method == "compressed-tensors" and (found := _compressed(scheme)) is not None:
        return found[0], Precision(16, found[1], kinds)
    raise ConfigFault(f"quant_method {shown(method or algorithm)} is not known here: say --dtype")


def _compressed(scheme: Fields) -> tuple[str, float] | None:
    """Read what the first group of a compressed-tensors file says of its weights."""
    groups = scheme.raw("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = Fields(group).inner("weights") if isinstance(group, dict) else None
        if weights is not None:
            bits, kind = weights.whole("num_bits", least=1), weights.word("type", "int")
            size = weights.whole("group_size", 0) if weights.raw("group_size") != -1 else 0
            if kind == "float":
                return f"fp{bits}", bits + (8 / (size or 16) if bits == 4 else 0)
            return f"int{bits}", grouped(bits, size) if size else float(bits)
    return None


def leaves_attention(scheme: Fields) -> bool:
    """Whether a scheme leaves attention as it was, in some layer: then it is counted so in all."""
    return any("self_attn" in str(each) for name in EXCEPT for each in scheme.row(name) or ())


def has_small_cache(scheme: Fields) -> bool:
    """Whether a checkpoint brings scales for a KV cache of 8 bits, which engines then use."""
    whole = scheme.inner("quantization") or scheme
    cache = whole.inner("kv_cache_scheme")
    return whole.word("kv_cache_quant_algo").upper() == "FP8" or (cache is not None and cache.whole("num_bits", 8) == 8)
