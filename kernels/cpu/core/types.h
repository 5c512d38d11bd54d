// Storage types: block sizes in file layout and in the packed layout that the matrix kernels read.
//
// Packed layout. A matrix is cut into groups of 16 rows (the last one padded with zero rows). Quantised types: a group
// is K/32 blocks in order, each `head | scales | quants`. Quants interleave the 16 rows: one 64-byte line holds rows
// 0..15 x 4 consecutive k (a quad), so one register serves 16 outputs and no sum runs across lanes.
//   1 bit: 1 line; bit t of byte (row, i) belongs to k 4t+i.
//   2 bit: 2 lines: bits 2s..2s+1 of byte (row, i) of line h belong to k 4(4h+s)+i.
//   3 bit: the 2 lines of 2 bits, then 1 line of high bits as in 1 bit.
//   4 bit: 4 lines; line j = k 8j..8j+3 in the low nibbles, k 8j+4..8j+7 in the high ones.
//   5 bit: the 4 lines, then 1 line of high bits.
//   6 bit: the 4 lines, then 2 lines of high bits as in 2 bit.
//   8 bit: 8 lines, k 4j..4j+3, stored as q+128.
// A quant stands for itself, or (codes.h) for an entry of a table; the type's offset is then taken away.
// Scales of 32-blocks: f16 d[16], and f16 m[16] for types with a minimum. Types with larger blocks have a head before
// the first 32-block of each: f16 d[16] (f16 dmin[16]); 32-block scales are then bytes, one line of 16 or two (Q2_K,
// Q3_K, Q6_K: for k 0..15 and 16..31; Q4_K, Q5_K: scale and minimum), or absent. MXFP4 and NVFP4 keep their byte scales.
// F32, F16, BF16: a group is K columns of 16 values.
// Our own types, of blocks of 32 or 128 (the last part of their names). In the file: f32 d, i8 zero (not F8), codes in
// order, two a byte in I4, the low half first. A value is d (code - zero), in I8 d (code - 128 - zero), in F8 d times an 8-bit
// float (4 exponent bits, bias 7, 3 mantissa bits; no NaN). Packed: a head of f32 d[16] and i8 zero[16]; F8 quants are
// columns of 16 bytes. Scales of f32 and zeros of their own keep what GPTQ, AWQ and their kin store exact.
//
// Bits a weight, stored -> packed, where they differ by more than 4 %: TQ1_0 1.69 -> 2.06; IQ1_S 1.56, IQ1_M 1.75,
// IQ2_XXS 2.06, IQ2_XS 2.31, IQ2_S 2.56 -> 3.31; IQ3_XXS 3.06, IQ3_S 3.44 -> 4.31: sign and magnitude of each weight
// instead of the number of its codebook point, whose look-up for 16 rows costs more than reading those bits.
#pragma once
#include <stdint.h>

#include "../abi.h"
#include "codes.h"

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

// Blocks of activations whose largest size is below this count as zeros: the inverse of their scale would leave f32.
constexpr float LEAST_ACTIVATION = 1e-30f;

// The integer sums of a block's two halves, for 8-bit activations. They wrap where a row is not finite.
static inline void set_sums(XBlock* out, int32_t low, int32_t up) {
  const uint32_t all = static_cast<uint32_t>(low) + static_cast<uint32_t>(up);
  out->sum = static_cast<float>(static_cast<int32_t>(all));
  out->minus = static_cast<int32_t>(0u - all);
  out->minus_low = static_cast<int32_t>(0u - static_cast<uint32_t>(low));
}

// Op flags.
constexpr int32_t ADD_TO_OUT = 1;     // linear
constexpr int32_t ADJACENT_PAIRS = 1;  // rope
constexpr int32_t FINE = 2;           // quantize, linear: 16-bit activations
constexpr int32_t WITH_SILU = 1;      // short_conv
constexpr int32_t TILED_HEADS = 1;    // delta_rule: v-head h reads k-head h % Hk
constexpr int32_t WITH_SIGMOID = 1;   // gated_norm: in place of SiLU
constexpr int64_t MOST_TAPS = 16;     // of a short convolution

struct TypeInfo {
  int32_t type;
  int32_t block;        // elements of a file block, 1 for floats
  int32_t block_bytes;  // bytes of a file block
  int32_t bits;         // of a packed quant; of an element for floats
  int32_t scale_bytes;  // packed: before the quants of each 32-block of a group
  int32_t head_bytes;   // packed: before the first 32-block of each file block of a group
  int32_t offset;       // a quant's value is (table ? table[quant] : quant) - offset
  const uint8_t* table;
};

static inline const TypeInfo* type_info(int64_t type) {
  static const TypeInfo table[] = {
      {LLMRUN_F32, 1, 4, 32, 0, 0, 0, nullptr},
      {LLMRUN_F16, 1, 2, 16, 0, 0, 0, nullptr},
      {LLMRUN_BF16, 1, 2, 16, 0, 0, 0, nullptr},
      {LLMRUN_Q4_0, 32, 18, 4, 32, 0, 8, nullptr},
      {LLMRUN_Q4_1, 32, 20, 4, 64, 0, 0, nullptr},
      {LLMRUN_Q5_0, 32, 22, 5, 32, 0, 16, nullptr},
      {LLMRUN_Q5_1, 32, 24, 5, 64, 0, 0, nullptr},
      {LLMRUN_Q8_0, 32, 34, 8, 32, 0, 128, nullptr},
      {LLMRUN_Q1_0, 128, 18, 1, 0, 32, 1, SIGNS},
      {LLMRUN_Q2_0, 64, 18, 2, 0, 32, 1, nullptr},
      {LLMRUN_Q2_K, 256, 84, 2, 32, 64, 0, nullptr},
      {LLMRUN_Q3_K, 256, 110, 3, 32, 32, 4, nullptr},
      {LLMRUN_Q4_K, 256, 144, 4, 32, 64, 0, nullptr},
      {LLMRUN_Q5_K, 256, 176, 5, 32, 64, 0, nullptr},
      {LLMRUN_Q6_K, 256, 210, 6, 32, 32, 32, nullptr},
      {LLMRUN_IQ1_S, 256, 50, 3, 16, 32, 16, SHIFTED_TRITS},
      {LLMRUN_IQ1_M, 256, 56, 3, 16, 32, 16, SHIFTED_TRITS},
      {LLMRUN_IQ2_XXS, 256, 66, 3, 16, 32, 64, THREE_SIZES},
      {LLMRUN_IQ2_XS, 256, 74, 3, 16, 32, 64, THREE_SIZES},
      {LLMRUN_IQ2_S, 256, 82, 3, 16, 32, 64, THREE_SIZES},
      {LLMRUN_IQ3_XXS, 256, 98, 4, 16, 32, 64, EIGHT_SIZES},
      {LLMRUN_IQ3_S, 256, 110, 4, 16, 32, 16, ODD_SIZES},
      {LLMRUN_IQ4_NL, 32, 18, 4, 32, 0, 128, CURVE},
      {LLMRUN_IQ4_XS, 256, 136, 4, 16, 32, 128, CURVE},
      {LLMRUN_MXFP4, 32, 17, 4, 16, 0, 16, SMALL_FLOATS},
      {LLMRUN_NVFP4, 64, 36, 4, 32, 0, 16, SMALL_FLOATS},
      {LLMRUN_TQ1_0, 256, 54, 2, 0, 32, 1, nullptr},
      {LLMRUN_TQ2_0, 256, 66, 2, 0, 32, 1, nullptr},
      {LLMRUN_I4_32, 32, 21, 4, 0, 80, 0, nullptr},
      {LLMRUN_I4_128, 128, 69, 4, 0, 80, 0, nullptr},
      {LLMRUN_I8_32, 32, 37, 8, 0, 80, 128, nullptr},
      {LLMRUN_I8_128, 128, 133, 8, 0, 80, 128, nullptr},
      {LLMRUN_F8_32, 32, 36, 8, 0, 64, 0, nullptr},
      {LLMRUN_F8_128, 128, 132, 8, 0, 64, 0, nullptr},
  };
  for (const TypeInfo& info : table)
    if (info.type == type) return &info;
  return nullptr;
}

// Bytes of an element of a cache.
static inline int64_t cache_bytes(int64_t type) { return type == LLMRUN_F32 ? 4 : type == LLMRUN_I8 ? 1 : 2; }

// Values of a cache in 4 bits: blocks of 32 as in Q4_1 (scale and least value in f16, 16 bytes of codes).
constexpr int VALUE_BLOCK_BYTES = 20;

// Bytes of a token's row of values.
static inline int64_t value_row_bytes(int64_t type, int64_t width) {
  return type == LLMRUN_Q4_1 ? (width + BLOCK - 1) / BLOCK * VALUE_BLOCK_BYTES : width * cache_bytes(type);
}

static inline bool is_float(int64_t type) { return type == LLMRUN_F32 || type == LLMRUN_F16 || type == LLMRUN_BF16; }

static inline bool is_byte_float(int64_t type) { return type == LLMRUN_F8_32 || type == LLMRUN_F8_128; }

// Types that are multiplied with f32 activations.
static inline bool takes_floats(int64_t type) { return is_float(type) || is_byte_float(type); }

// Types whose head is f32 d[16], with i8 zero[16] unless they are 8-bit floats.
static inline bool has_wide_head(int64_t type) { return type >= LLMRUN_I4_32 && type <= LLMRUN_F8_128; }

// Types whose blocks name points of a codebook, which pack and embed are handed.
static inline bool needs_grid(int64_t type) {
  return (type >= LLMRUN_IQ2_XXS && type <= LLMRUN_IQ1_S) || type == LLMRUN_IQ3_S || type == LLMRUN_IQ2_S ||
         type == LLMRUN_IQ1_M;
}

// Packed bytes of one 32-block of a group, the head not counted.
static inline int64_t packed_block_bytes(const TypeInfo& info) { return info.scale_bytes + info.bits * (BLOCK * GROUP / 8); }

static inline int64_t row_bytes(const TypeInfo& info, int64_t cols) { return cols / info.block * info.block_bytes; }

// Bytes of one packed group of 16 rows.
static inline int64_t group_bytes(const TypeInfo& info, int64_t cols) {
  if (info.block == 1) return cols * info.bits / 8 * GROUP;
  return cols / BLOCK * packed_block_bytes(info) + cols / info.block * info.head_bytes;
}

static inline int64_t groups_of(int64_t rows) { return (rows + GROUP - 1) / GROUP; }

}  // namespace llmrun
