"""Which kernels a model needs is known from its config, and is exactly what its steps launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from strata_engine.config import EngineConfig
from strata_engine.core.batch import BatchLimits
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.models.planned import planned
from strata_engine.registry.local import config_only
from strata_engine.runtime.executor import Executor
from strata_engine.runtime.kernels import needed_kernels
from strata_kernels.gpu.planning import PlanOps
from tests.support.published_configs import config_of

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 320}  # fmt: skip
CONFIG = EngineConfig(max_sequences=3, batch_rows=40, page_tokens=16)


def directory(tmp_path: Path, name: str, quantised: str = "bf16", **changes: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**config_of(name, quantised), **changes}))
    return tmp_path


def kernels_of(path: Path, config: EngineConfig = CONFIG) -> list[str]:
    files = config_only(str(path))
    assert files is not None
    return [variant.key for variant in needed_kernels(files, config).variants]


def test_the_plan_is_what_all_steps_launch(tmp_path: Path):
    path = directory(tmp_path, "qwen3-8b", **SMALL)
    ops: Any = PlanOps()
    model = load_model(planned(path), ops).model
    limits = BatchLimits(40, 3, 40, 3)
    executor = Executor(model, ops, Memory(model.memory(), 3, 16, CONFIG.kv_type, ops.zeros), limits)
    with ops.planning() as every:
        for rows in range(1, 41):
            for wanted in range(min(rows, 3) + 1):
                for tops in (False, True) if wanted else (False,):
                    with ops.scope():
                        executor._record((rows, wanted, tops))
    assert sorted(kernels_of(path)) == sorted(variant.key for variant in every)
    assert len(every) > 20


def test_storage_and_kv_types_choose_other_kernels(tmp_path: Path):
    plain = kernels_of(directory(tmp_path, "qwen3-8b", **SMALL))
    assert not [key for key in plain if "_cells" in key]
    wide = {**SMALL, "hidden_size": 256, "intermediate_size": 256, "head_dim": 128}
    packed = kernels_of(directory(tmp_path, "qwen3-8b", "int4", **wide))
    assert [key for key in packed if key.startswith("gemv_cells") and "BITS=4" in key]
    small = kernels_of(directory(tmp_path, "qwen3-8b", **SMALL), EngineConfig(max_sequences=3, kv_type="int8"))
    assert [key for key in small if key.startswith("kv_store") and "*i8" in key]


def test_sizes_of_a_published_model_need_no_memory(tmp_path: Path):
    keys = kernels_of(directory(tmp_path, "qwen3-8b", num_hidden_layers=1), EngineConfig(batch_rows=32))
    assert [key for key in keys if "K=12288,N=4096" in key]  # 8 B parameters a step, and nothing is allocated


def test_matrices_that_are_quantised_on_the_way_are_planned_so(tmp_path: Path):
    wide = {**SMALL, "hidden_size": 256, "intermediate_size": 256, "head_dim": 128}
    keys = kernels_of(directory(tmp_path, "qwen3-8b", **wide), EngineConfig(batch_rows=32, quantize_rest="int8"))
    assert [key for key in keys if key.startswith("gemv_cells") and "BITS=8" in key]


def test_planned_memory_reads_zeros_and_takes_none():
    ops: Any = PlanOps()
    array = ops.zeros(1 << 20, 1 << 12)  # 16 GiB
    assert array.address % 256 == 0
    array[3] = np.ones(1 << 12, np.float32)
    assert not array[3].numpy().any()
    assert array[1].copy().address != array[1].address
