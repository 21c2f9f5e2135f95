"""WorkModel: tokens to seconds of engine time, the one currency in which waiting, prefill and a cache hit add up.

A Profile is what one kind of GPU and model does with tokens, fitted offline. Each endpoint has a WorkModel of its own:
the profile, times two factors (prefill, decode) that follow what is observed there. A factor moves by a small step in
the logarithm of observed over predicted, so that one odd measurement counts for little, and stays within a bound: a
model wrong by 4 still routes within 7 % of the right one, but one that ran away would not.

What is observed is also learned of all engines of one make (those of a pool that began with the same profile), and an
engine of which little was seen lately is taken for one of its make. Else the first that is found faster than its
profile would look faster than its idle twins for ever, and they would never be asked again; and one that was slow would
not be tried again. Under traffic an engine's own figures count alone, and unlike GPUs are told apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from weakref import WeakSet


@dataclass(frozen=True, slots=True)
class Profile:
    """Step times of one model on one kind of GPU; coefficients in milliseconds.

    A decode step of B sequences with `context` tokens in all takes d0 + d1*B + d2*context; a prefill of n tokens after
    m cached ones takes p0 + p1*n + p2*n*(m + n/2).
    """

    d0: float
    d1: float
    d2: float
    p0: float
    p1: float
    p2: float
    kv_tokens: int
    budget_tokens: int = 8192
    """Most tokens of one iteration (vLLM: max_num_batched_tokens; 2048 on GPUs under 70 GB and on A100s)."""
    max_num_seqs: int = 256


# bench-8b from bandwidth and FLOP arithmetic for 8B on one H100; the others fitted to NVIDIA AIConfigurator 0.12
# (vLLM 0.24, bf16), mean error 1-3 %.
PROFILES = {
    "bench-8b": Profile(7.0, 0.030, 5.6e-5, 0.0, 0.033, 1.3e-6, 400_000),
    "llama-8b-l40s": Profile(22.09, 0.0430, 1.864e-4, 0.86, 0.06975, 2.844e-6, 190_000, 2048),
    "llama-8b-a100": Profile(11.66, 0.0286, 8.373e-5, 6.98, 0.05502, 2.961e-6, 450_000, 2048),
    "llama-8b-h100": Profile(6.36, 0.0121, 4.139e-5, 1.37, 0.02010, 7.897e-7, 450_000),
    "qwen-32b-2xh100": Profile(13.69, 0.0259, 4.229e-5, 3.75, 0.05002, 1.593e-6, 307_328),
    "llama-70b-4xh100": Profile(15.27, 0.0321, 2.627e-5, 4.94, 0.06145, 9.765e-7, 475_000),
    "llama-70b-4xa100": Profile(27.60, 0.0976, 5.872e-5, 28.62, 0.14794, 3.701e-6, 475_000, 2048),
}
DEFAULT_PROFILE = PROFILES["bench-8b"]  # the middle of the table; what it gets wrong the factors put right

MAX_FACTOR = 8.0  # the slowest row of the table is 7 times the fastest
PACE = 0.05  # some twenty observations make a factor believe
MAX_LOG = log(MAX_FACTOR)
STEP = 0.02  # of what is common: less is no reason to reckon all endpoints anew
OWN_FADES_S = 60.0  # to a third: under traffic a factor is learned a hundred times meanwhile
FEW = 10.0  # observations, by weight: with so many, half is its own
MAX_RATIO = 4.0  # what one observation may claim: a pause of the engine is no measurement


class Make:
    """What the engines of one make have in common, in logarithms; told to all of them when it has moved by a step."""

    __slots__ = ("_told", "decode", "models", "prefill")

    def __init__(self) -> None:
        self.prefill = self.decode = 0.0
        self._told = (0.0, 0.0)
        self.models: WeakSet[WorkModel] = WeakSet()

    def tell(self) -> None:
        """Let all engines know, if there is something to know."""
        prefill, decode = self._told
        if abs(self.prefill - prefill) > STEP or abs(self.decode - decode) > STEP:
            self._told = (self.prefill, self.decode)
            for model in self.models:
                model.scale()


class WorkModel:
    """Seconds of one endpoint. The coefficients `d0` to `p2` are in seconds and include the factors.

    Args:
        make: What it shares with others; its own alone by default.
    """

    __slots__ = (
        "__weakref__",
        "_decode",
        "_decodes",
        "_prefill",
        "_prefills",
        "d0",
        "d1",
        "d2",
        "listener",
        "make",
        "p0",
        "p1",
        "p2",
        "profile",
    )

    def __init__(self, profile: Profile = DEFAULT_PROFILE, make: Make | None = None) -> None:
        self.profile = profile
        self.make = Make() if make is None else make
        self.make.models.add(self)
        self._prefill = self._decode = 0.0
        self._prefills = self._decodes = 0.0  # observations, those long ago for less
        self.listener: Callable[[], None] | None = None
        """Told when the coefficients change by what others observed."""
        self.scale()

    def __repr__(self) -> str:
        prefill, decode = self._logs()
        return f"<WorkModel prefill x{exp(prefill):.2f} decode x{exp(decode):.2f}>"

    def prefill_s(self, uncached_tokens: int, cached_tokens: int) -> float:
        """Seconds of engine time for a prompt, beyond what its steps cost anyway."""
        return self.p1 * uncached_tokens + self.p2 * uncached_tokens * (cached_tokens + uncached_tokens / 2)

    def step_s(self, decoding: float, context_tokens: float) -> float:
        """Seconds of one iteration of so many decodes with so many tokens of context in all."""
        return self.d0 + self.d1 * decoding + self.d2 * context_tokens

    def observe_prefill(self, predicted_s: float, observed_s: float) -> None:
        """Learn from a prompt that waited for no other: what this model said until its first token, and the truth."""
        seen = self._logs()[0] + _ratio(predicted_s, observed_s)
        self._prefill = _bounded(self._prefill + PACE * (seen - self._prefill))
        self.make.prefill = _bounded(self.make.prefill + PACE * (seen - self.make.prefill))
        self._prefills += 1
        self.scale()
        self.make.tell()

    def observe_decode(self, predicted_s: float, observed_s: float) -> None:
        """Learn from a step: what this model said of its batch, and seconds per token without others' prefills."""
        seen = self._logs()[1] + _ratio(predicted_s, observed_s)
        self._decode = _bounded(self._decode + PACE * (seen - self._decode))
        self.make.decode = _bounded(self.make.decode + PACE * (seen - self.make.decode))
        self._decodes += 1
        self.scale()
        self.make.tell()

    def relax(self, passed_s: float) -> None:
        """Let what was observed count for less: so much time has passed."""
        left = exp(-passed_s / OWN_FADES_S)
        self._prefills *= left
        self._decodes *= left
        self.scale()

    def scale(self) -> None:
        """Bring the coefficients up to date."""
        profile = self.profile
        prefill, decode = self._logs()
        prefill, decode = exp(prefill) / 1e3, exp(decode) / 1e3
        self.d0, self.d1, self.d2 = profile.d0 * decode, profile.d1 * decode, profile.d2 * decode
        self.p0, self.p1, self.p2 = profile.p0 * prefill, profile.p1 * prefill, profile.p2 * prefill
        if self.listener is not None:
            self.listener()

    def _logs(self) -> tuple[float, float]:
        """Give the logarithms of the factors: of its own as far as it was observed, else its make's."""
        make = self.make
        prefill = make.prefill + (self._prefill - make.prefill) * self._prefills / (self._prefills + FEW)
        decode = make.decode + (self._decode - make.decode) * self._decodes / (self._decodes + FEW)
        return prefill, decode


def _ratio(predicted_s: float, observed_s: float) -> float:
    """Give the logarithm of observed over predicted, within what one observation may claim."""
    if predicted_s <= 0.0 or observed_s <= 0.0:
        return 0.0
    return log(min(max(observed_s / predicted_s, 1 / MAX_RATIO), MAX_RATIO))


def _bounded(logarithm: float) -> float:
    return min(max(logarithm, -MAX_LOG), MAX_LOG)


def moved(factor: float, predicted_s: float, observed_s: float) -> float:
    """Move a factor a step towards observed over predicted; it stays where either is nothing."""
    return exp(_bounded(log(factor) + PACE * _ratio(predicted_s, observed_s)))
