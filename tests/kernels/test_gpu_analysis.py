"""Figures of machine code, from texts as compilers write them."""

from __future__ import annotations

from strata_kernels.gpu.analysis import amd_figures
from strata_kernels.gpu.flow import Instruction, loops

TEXT = """
kernel:
	v_mov_b32_e32 v0, 0
	s_cbranch_execz .LBB0_5
.LBB0_1:                                ; %outer
	v_add_f32_e32 v1, v0, v0
.LBB0_2:                                ; %inner
	v_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5
	v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
	global_load_b128 v[0:3], v4, s[0:1]
	s_cbranch_scc1 .LBB0_2
	v_nop
	s_cbranch_vccnz .LBB0_1
.LBB0_5:
	v_mul_f32_e32 v1, v1, v1
	s_cbranch_execnz .LBB0_9
.LBB0_6:
	s_endpgm
.LBB0_9:                                ; moved behind the end: no loop
	v_mul_f32_e32 v1, v1, v1
	s_branch .LBB0_6
    .vgpr_count:     25
    .sgpr_count:     18
    .vgpr_spill_count: 3
    .private_segment_fixed_size: 12
"""


def test_amd_text() -> None:
    found = amd_figures(TEXT)
    assert (found["vgprs"], found["sgprs"], found["spills"], found["scratch_bytes"]) == (25, 18, 3, 12)
    assert found["matrix"] == 1
    assert found["loops"] == [[1, 0], [2, 1]]  # the outer without the inner; two operations of a pair count as two


def test_a_block_behind_the_end_is_no_loop() -> None:
    program = [Instruction("a", 3), Instruction("b"), Instruction("end", ends=True), Instruction("c", 1, ends=True)]
    assert loops(program) == []


def test_loops_of_one_block_and_of_nothing() -> None:
    assert loops([]) == []
    assert loops([Instruction("a"), Instruction("b", 1), Instruction("end", ends=True)]) == [[1]]


def test_two_ways_back_to_one_block_are_one_loop() -> None:
    program = [Instruction("head"), Instruction("if", 4), Instruction("x"), Instruction("back", 0, True),
               Instruction("y"), Instruction("back", 0), Instruction("end", ends=True)]  # fmt: skip
    assert loops(program) == [[0, 1, 2, 3, 4, 5]]
