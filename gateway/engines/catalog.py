"""Kind -> the adapter that speaks for it."""

from collections.abc import Mapping

from gateway.engines.adapter import Adapter, Kind
from gateway.engines.llamacpp import Llamacpp
from gateway.engines.sglang import Sglang
from gateway.engines.tgi import Tgi
from gateway.engines.triton import Triton
from gateway.engines.trtllm import Trtllm
from gateway.engines.vllm import Vllm

ADAPTERS: Mapping[Kind, Adapter] = {
    Kind.VLLM: Vllm(),
    Kind.SGLANG: Sglang(),
    Kind.TRTLLM: Trtllm(),
    Kind.TRITON: Triton(),
    Kind.LLAMACPP: Llamacpp(),
    Kind.TGI: Tgi(),
}
