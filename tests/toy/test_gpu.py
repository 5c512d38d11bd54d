"""The toy model with every operation in Triton's interpreter: the logits of the processor's plain operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strata_engine.formats.open import open_weights
from strata_kernels.gpu.arrays import HostAllocator
from strata_kernels.gpu.interpreted import InterpretedLauncher
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner

TOY = Path(__file__).parents[1] / "fixtures" / "toy"
IDS = [5, 90, 17, 233, 61, 8, 402, 77, 19, 250, 33, 12, 71, 140, 9, 55, 81, 23]


@pytest.mark.slow
def test_logits_of_a_prompt_and_of_decoding_are_those_of_the_processor():
    found = []
    for ops in (ReferenceOps(), GpuOps(InterpretedLauncher(), HostAllocator(host=False))):
        runner = Runner(open_weights(TOY), ops, context_tokens=32, sequences=1)
        found.append(runner.all_logits(IDS, [17, 1]))  # 17 rows take the kernels of prompts, 1 those of decoding
    wanted, got = found
    spread = wanted.std()
    assert (got - wanted).abs().max() < 0.02 * spread
    assert torch.equal(got.argmax(1), wanted.argmax(1))
    kl = torch.nn.functional.kl_div(got.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean")
    assert kl < 1e-4
