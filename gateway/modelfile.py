"""A JSON file about a model, read field by field, with one line of complaint where a field is not what it must be.

Families of models name the same thing differently: a field is asked for by one name, and NAMES knows the others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

MAX_BYTES = 64 << 20  # the index of the largest models has 10 MB
MAX_WHOLE = 1 << 50  # the largest models have some 2^41 bytes

NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "model_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "active": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "top_k_experts",
        "moe_k",
        "experts_per_token",
    ),
    "expert_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_inner": (
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"),
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "mamba_heads": ("mamba_n_heads", "mamba_num_heads", "num_heads"),
    "mamba_head": ("mamba_d_head", "mamba_head_dim", "head_dim"),
    "mamba_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "mamba_groups": ("mamba_n_groups", "n_groups"),
    "mamba_conv": ("mamba_d_conv", "conv_kernel", "conv_kernel_size", "d_conv"),
    "mamba_expand": ("mamba_expand", "expand"),
    "mamba_rank": ("mamba_dt_rank", "time_step_rank"),
}
"""Of one figure, in the words of the families; the first that is there counts."""


class ConfigFault(Exception):
    """A file that is not to be understood: says why, in one line."""


class Fields:
    """A JSON object, read field by field."""

    def __init__(self, content: Mapping[str, object]) -> None:
        """Read this object."""
        self._content = content

    def __contains__(self, name: str) -> bool:
        return any(self._content.get(each) is not None for each in NAMES.get(name, (name,)))

    def raw(self, name: str) -> object:
        """Give what a field has, whatever that is; None: nothing."""
        for each in NAMES.get(name, (name,)):
            if (value := self._content.get(each)) is not None:
                return value
        return None

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Give a whole number.

        Raises:
            ConfigFault: it is missing, without a default, or nothing that a model can have.
        """
        value = self.raw(name)
        if value is None:
            if default is None:
                raise ConfigFault(f"has no {' or '.join(NAMES.get(name, (name,)))}")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_WHOLE:
            raise ConfigFault(f"{name} must be a whole number from {least}, is {shown(value)}")
        return value

    def word(self, name: str, default: str = "") -> str:
        """Give a text; something else counts as none."""
        value = self.raw(name)
        return value if isinstance(value, str) else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Give a truth."""
        value = self.raw(name)
        return value if isinstance(value, bool) else default

    def row(self, name: str) -> Sequence[object] | None:
        """Give a list; something else counts as none."""
        value = self.raw(name)
        return value if isinstance(value, list) else None

    def inner(self, name: str) -> "Fields | None":
        """Give an object in this one."""
        value = self.raw(name)
        return Fields(value) if isinstance(value, dict) else None


def shown(value: object) -> str:
    """Word a value of a file, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_json(file: Path) -> Mapping[str, object]:
    """Read a JSON object from a file.

    Raises:
        ConfigFault: there is none.
    """
    try:
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise ConfigFault(f"is larger than {MAX_BYTES >> 20} MB")
        content = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigFault(f"cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigFault(f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigFault("is no JSON object")
    return content
