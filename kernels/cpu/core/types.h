// Storage types: block sizes in file layout and in the packed layout that the matrix kernels read.
//
// Packed layout. A matrix is cut into groups of 16 rows (the last one padded with zero rows). Quantised types: a group
// is K/32 blocks in order, each `head | scales | quants`. Quants interleave the 16 rows: one 64-byte line holds rows
// 0..15 x 4 consecutive k, so one register serves 16 outputs and no sum runs across lanes.
//   4 bit: 4 lines; line j = k 8j..8j+3 in the low nibbles, k 8j+4..8j+7 in the high ones.
//   5 bit: the 4 lines, then 1 line of high bits: bit t of byte (row, i) belongs to k 4t+i.
//   6 bit: the 4 lines, then 2 lines: bits 2s..2s+1 of byte (row, i) of line h belong to k 4(4h+s)+i.
//   8 bit: 8 lines, k 4j..4j+3, stored as q+128.
// Scales of 32-blocks: f16 d[16], and f16 m[16] for types with a minimum. K types: each eighth block is preceded by a head
// f16 d[16] (f16 dmin[16]); scales are u8 s[16], u8 m[16] (Q4_K, Q5_K) or i8 s[2][16] (Q6_K).
// F32, F16, BF16: a group is K columns of 16 values.
#pragma once
#include <stdint.h>

#include "../abi.h"

namespace llmrun {

constexpr int GROUP = 16;   // output rows interleaved in a packed group
constexpr int BLOCK = 32;   // elements sharing an activation scale
constexpr int SUPER = 256;  // elements of a K-type block

// Activations come in two precisions. 8 bit: one XBlock a row and block, scale max|x|/127. 16 bit: two, high then low, with
// x = d (255 high + low), scale max|x|/32512; `d` and `sum` (of 255 high + low) are in the first of the two, and integer
// sums of both are joined before anything is rounded.
constexpr int PLANE = 255;          // weight of the high plane: |low| <= 127 keeps every instruction's byte range
constexpr int MOST_16_BIT = 32512;  // 127 * 255 + 127

// Activations of one row and one block. `minus` and `minus_low` are the negated sums of all 32 and of the first 16
// quants: what unsigned weights need to take their offset back.
struct XBlock {
  int8_t q[BLOCK];
  float d;
  float sum;  // sum of q, as f32
  int32_t minus;
  int32_t minus_low;
};
static_assert(sizeof(XBlock) == 48, "XBlock layout");

// Op flags.
constexpr int32_t ADD_TO_OUT = 1;     // linear
constexpr int32_t ADJACENT_PAIRS = 1;  // rope
constexpr int32_t FINE = 2;           // quantize, linear: 16-bit activations

struct TypeInfo {
  int32_t type;
  int32_t block;         // elements of a file block, 1 for floats
  int32_t block_bytes;   // bytes of a file block
  int32_t head_bytes;    // packed: before each 8th block of a group
  int32_t packed_bytes;  // packed: scales and quants of one 32-block of a group; for floats one column of a group
};

static inline const TypeInfo* type_info(int64_t type) {
  static const TypeInfo table[] = {
      {LLMRUN_F32, 1, 4, 0, 64},           {LLMRUN_F16, 1, 2, 0, 32},           {LLMRUN_BF16, 1, 2, 0, 32},
      {LLMRUN_Q4_0, 32, 18, 0, 32 + 256},  {LLMRUN_Q4_1, 32, 20, 0, 64 + 256},  {LLMRUN_Q5_0, 32, 22, 0, 32 + 320},
      {LLMRUN_Q5_1, 32, 24, 0, 64 + 320},  {LLMRUN_Q8_0, 32, 34, 0, 32 + 512},  {LLMRUN_Q4_K, 256, 144, 64, 32 + 256},
      {LLMRUN_Q5_K, 256, 176, 64, 32 + 320}, {LLMRUN_Q6_K, 256, 210, 32, 32 + 384},
  };
  for (const TypeInfo& info : table)
    if (info.type == type) return &info;
  return nullptr;
}

static inline bool is_float(int64_t type) { return type == LLMRUN_F32 || type == LLMRUN_F16 || type == LLMRUN_BF16; }

static inline int64_t row_bytes(const TypeInfo& info, int64_t cols) { return cols / info.block * info.block_bytes; }

// Bytes of one packed group of 16 rows.
static inline int64_t group_bytes(const TypeInfo& info, int64_t cols) {
  if (info.block == 1) return cols * info.packed_bytes;
  return cols / BLOCK * info.packed_bytes + (info.head_bytes ? cols / SUPER * info.head_bytes : 0);
}

static inline int64_t groups_of(int64_t rows) { return (rows + GROUP - 1) / GROUP; }

}  // namespace llmrun
