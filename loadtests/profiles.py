"""Profile: how long an iteration takes on one kind of GPU. Pure; a part of the simulated engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Step times of one model on one kind of GPU, coefficients in milliseconds."""

    name: str
    d0: float
    d1: float
    d2: float
    p0: float
    p1: float
    p2: float
    kv_tokens: int
    batch_tokens: int = 8192
    is_sum: bool = False
    """Prefill adds to the decode step; else the longer of both counts, since one hides in the other."""

    def step_s(self, decodes: int, context: int, prefill: int = 0, attended: float = 0.0) -> float:
        """Seconds of one iteration.

        Args:
            decodes: Sequences that decode one token each.
            context: Sum of their context tokens.
            prefill: Prompt tokens computed, over all chunks.
            attended: Sum over chunks of n * (prefix + n/2).
        """
        if self.is_sum:
            linear = self.d0 + self.d1 * decodes + self.p1 * prefill
        elif prefill:
            linear = max(self.d0 + self.d1 * decodes, self.p0 + self.p1 * (prefill + decodes))
        else:
            linear = self.d0 + self.d1 * decodes
        return (linear + self.d2 * context + self.p2 * attended) / 1e3


# bench-8b from bandwidth and FLOP arithmetic; the others fitted to NVIDIA AIConfigurator 0.12 (vLLM 0.24,
# bf16), mean error 1-3 %. vLLM's token budget is 2048 on GPUs under 70 GB and on A100s.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("bench-8b", 7.0, 0.030, 5.6e-5, 0.0, 0.033, 1.3e-6, 400_000, is_sum=True),
        Profile("llama-8b-l40s", 22.09, 0.0430, 1.864e-4, 0.86, 0.06975, 2.844e-6, 190_000, 2048),
        Profile("llama-8b-a100", 11.66, 0.0286, 8.373e-5, 6.98, 0.05502, 2.961e-6, 450_000, 2048),
        Profile("llama-8b-h100", 6.36, 0.0121, 4.139e-5, 1.37, 0.02010, 7.897e-7, 450_000),
        Profile("qwen-32b-2xh100", 13.69, 0.0259, 4.229e-5, 3.75, 0.05002, 1.593e-6, 307_328),
        Profile("llama-70b-4xh100", 15.27, 0.0321, 2.627e-5, 4.94, 0.06145, 9.765e-7, 475_000),
        Profile("llama-70b-4xa100", 27.60, 0.0976, 5.872e-5, 28.62, 0.14794, 3.701e-6, 475_000, 2048),
    )
}
