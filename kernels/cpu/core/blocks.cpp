// Reads the 32-blocks of all quantised types but those with a codebook (codebook.cpp), and turns blocks into values.
#include "blocks.h"

namespace llmrun {
namespace {

void nibbles(const uint8_t* qs, int half, uint8_t* q) {  // `half` bytes: first all low nibbles, then all high ones
  for (int i = 0; i < half; ++i) {
    q[i] = qs[i] & 15;
    q[i + half] = qs[i] >> 4;
  }
}

void fifth_bits(const uint8_t* qh, uint8_t* q) {
  const uint32_t bits = read32(qh);
  for (int i = 0; i < BLOCK; ++i) q[i] = static_cast<uint8_t>(q[i] | (((bits >> i) & 1u) << 4));
}

void six_bit_scales(const uint8_t* s, int j, uint8_t* out) {  // Q4_K, Q5_K: scale and minimum of block j
  if (j < 4) {
    out[0] = s[j] & 63;
    out[1] = s[j + 4] & 63;
  } else {
    out[0] = static_cast<uint8_t>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    out[1] = static_cast<uint8_t>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

void k_nibbles(const uint8_t* qs, int j, uint8_t* q) {
  const uint8_t* from = qs + 32 * (j / 2);
  for (int i = 0; i < BLOCK; ++i) q[i] = (from[i] >> (4 * (j % 2))) & 15;
}

void k_pairs(const uint8_t* qs, int j, uint8_t* q) {  // 32 bytes hold four blocks, two bits each
  const uint8_t* from = qs + 32 * (j / 4);
  for (int i = 0; i < BLOCK; ++i) q[i] = (from[i] >> (2 * (j % 4))) & 3;
}

void read_q2_k(const uint8_t* p, int j, Block* out) {
  k_pairs(p + 16, j, out->q);
  out->s[0] = p[2 * j];
  out->s[1] = p[2 * j + 1];
  out->d = read16(p + 80);
  out->m = read16(p + 82);
}

void read_q3_k(const uint8_t* p, int j, Block* out) {
  k_pairs(p + 32, j, out->q);
  for (int i = 0; i < BLOCK; ++i) out->q[i] = static_cast<uint8_t>(out->q[i] | (((p[i] >> j) & 1) << 2));
  for (int i = 0; i < 2; ++i) {
    const int s = 2 * j + i;
    const int low = s < 8 ? p[96 + s] & 15 : p[96 + s - 8] >> 4, high = (p[104 + s % 4] >> (2 * (s / 4))) & 3;
    out->s[i] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  out->d = read16(p + 108);
}

void read_q4_or_5_k(int32_t type, const uint8_t* p, int j, Block* out) {
  out->d = read16(p);
  out->m = read16(p + 2);
  six_bit_scales(p + 4, j, out->s);
  k_nibbles(p + (type == LLMRUN_Q4_K ? 16 : 48), j, out->q);
  if (type == LLMRUN_Q5_K)
    for (int i = 0; i < BLOCK; ++i) out->q[i] = static_cast<uint8_t>(out->q[i] | (((p[16 + i] >> j) & 1) << 4));
}

void read_q6_k(const uint8_t* p, int j, Block* out) {
  const int half = j / 4, quarter = j % 4;
  const uint8_t *low = p + 64 * half + 32 * (quarter % 2), *high = p + 128 + 32 * half;
  for (int i = 0; i < BLOCK; ++i)
    out->q[i] = static_cast<uint8_t>(((low[i] >> (4 * (quarter / 2))) & 15) | (((high[i] >> (2 * quarter)) & 3) << 4));
  out->s[0] = p[192 + 2 * j];
  out->s[1] = p[192 + 2 * j + 1];
  out->d = read16(p + 208);
}

void read_iq4_xs(const uint8_t* p, int j, Block* out) {
  out->d = read16(p);
  const int low = (p[4 + j / 2] >> (4 * (j % 2))) & 15, high = (read16(p + 2) >> (2 * j)) & 3;
  out->s[0] = static_cast<uint8_t>((low | high << 4) - 32);
  nibbles(p + 8 + 16 * j, 16, out->q);
}

// Digits of base 3: byte b is a fraction of 256, its nth digit the whole part of 3 (3^n b mod 256) / 256.
void read_tq1(const uint8_t* p, int j, Block* out) {
  static const uint8_t power[5] = {1, 3, 9, 27, 81};
  for (int i = 0; i < BLOCK; ++i) {
    const int e = BLOCK * j + i, f = e - 160, g = e - 240;
    const uint8_t byte = e < 160 ? p[e % 32] : e < 240 ? p[32 + f % 16] : p[48 + g % 4];
    const uint8_t scale = power[e < 160 ? e / 32 : e < 240 ? f / 16 : g / 4];
    out->q[i] = static_cast<uint8_t>((static_cast<uint8_t>(byte * scale) * 3) >> 8);
  }
  out->d = read16(p + 52);
}

void read_nvfp4(const uint8_t* p, int j, Block* out) {
  for (int i = 0; i < 2; ++i) {
    const uint8_t scale = p[2 * j + i];
    out->s[i] = scale == 0x7f ? 0 : scale & 0x7f;
    nibbles(p + 4 + 8 * (2 * j + i), 8, out->q + 16 * i);
  }
}

void read_small(int32_t type, const uint8_t* p, int j, Block* out) {  // Q1_0, Q2_0
  out->d = read16(p);
  for (int i = 0; i < BLOCK; ++i)
    out->q[i] = type == LLMRUN_Q1_0 ? (p[2 + 4 * j + i / 8] >> (i % 8)) & 1 : (p[2 + 8 * j + i / 4] >> (2 * (i % 4))) & 3;
}

void read_own(int32_t type, const uint8_t* p, int j, Block* out) {  // types with a wide head
  memcpy(&out->wide, p, 4);
  const bool byte_float = is_byte_float(type), four = type == LLMRUN_I4_32 || type == LLMRUN_I4_128;
  const uint8_t* codes = p + (byte_float ? 4 : 5);
  if (!byte_float) out->zero = static_cast<int8_t>(p[4]);
  for (int i = 0; i < BLOCK; ++i) {
    const int at = BLOCK * j + i;
    out->q[i] = four ? (codes[at / 2] >> (4 * (at % 2))) & 15 : codes[at];
  }
}

void read_simple(int32_t type, const uint8_t* p, Block* out) {  // blocks of 32; Q8_0 quants come out as q+128
  out->d = read16(p);
  switch (type) {
    case LLMRUN_Q4_0: case LLMRUN_IQ4_NL: return nibbles(p + 2, 16, out->q);
    case LLMRUN_Q4_1: out->m = read16(p + 2); return nibbles(p + 4, 16, out->q);
    case LLMRUN_Q5_0: nibbles(p + 6, 16, out->q); return fifth_bits(p + 2, out->q);
    case LLMRUN_Q5_1:
      out->m = read16(p + 2);
      nibbles(p + 8, 16, out->q);
      return fifth_bits(p + 4, out->q);
    case LLMRUN_MXFP4: out->s[0] = p[0]; return nibbles(p + 1, 16, out->q);
    default:
      for (int i = 0; i < BLOCK; ++i) out->q[i] = static_cast<uint8_t>(p[2 + i] ^ 128);
  }
}

// Scale and minimum (added) of each half of a block.
struct Scales {
  float d[2], m[2];
};

Scales same(float d, float m = 0.0f) { return {{d, d}, {m, m}}; }

Scales scales_of(int32_t type, const Block& block) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  const auto whole = [&](int i) { return static_cast<float>(static_cast<int8_t>(block.s[i])); };
  const auto low = [&](int i) { return static_cast<float>(block.s[i] & 15); };
  const auto high = [&](int i) { return static_cast<float>(block.s[i] >> 4); };
  switch (type) {
    case LLMRUN_Q4_1: case LLMRUN_Q5_1: return same(d, m);
    case LLMRUN_Q4_K: case LLMRUN_Q5_K: return same(d * whole(0), -(m * whole(1)));
    case LLMRUN_Q3_K: case LLMRUN_Q6_K: return {{d * whole(0), d * whole(1)}, {0, 0}};
    case LLMRUN_Q2_K: return {{d * low(0), d * low(1)}, {-(m * high(0)), -(m * high(1))}};
    case LLMRUN_IQ4_XS: case LLMRUN_IQ3_S: return same(d * whole(0));
    case LLMRUN_IQ3_XXS: return same(d * whole(0) * 0.25f);
    case LLMRUN_IQ2_XXS: case LLMRUN_IQ1_S: return same(d * whole(0) * 0.125f);
    case LLMRUN_IQ2_XS: case LLMRUN_IQ2_S: case LLMRUN_IQ1_M:
      return {{d * (2 * low(0) + 1) * 0.125f, d * (2 * high(0) + 1) * 0.125f}, {0, 0}};
    case LLMRUN_MXFP4: return same(power_to_float(block.s[0]));
    case LLMRUN_NVFP4: return {{byte_float_to_float(block.s[0]), byte_float_to_float(block.s[1])}, {0, 0}};
    default: return same(d);
  }
}

}  // namespace

void read_block(const Source& source, int64_t b, Block* out) {
  const TypeInfo& info = *source.info;
  const int64_t parts = info.block / BLOCK;
  const uint8_t* p = source.row + b / parts * info.block_bytes;
  const int j = static_cast<int>(b % parts);
  if (needs_grid(info.type)) return read_codebook_block(info.type, source.grid, p, j, out);
  if (has_wide_head(info.type)) return read_own(info.type, p, j, out);
  switch (info.type) {
    case LLMRUN_Q2_K: return read_q2_k(p, j, out);
    case LLMRUN_Q3_K: return read_q3_k(p, j, out);
    case LLMRUN_Q4_K: case LLMRUN_Q5_K: return read_q4_or_5_k(info.type, p, j, out);
    case LLMRUN_Q6_K: return read_q6_k(p, j, out);
    case LLMRUN_IQ4_XS: return read_iq4_xs(p, j, out);
    case LLMRUN_TQ1_0: return read_tq1(p, j, out);
    case LLMRUN_TQ2_0: out->d = read16(p + 64); return k_pairs(p, j, out->q);
    case LLMRUN_NVFP4: return read_nvfp4(p, j, out);
    case LLMRUN_Q1_0: case LLMRUN_Q2_0: return read_small(info.type, p, j, out);
    default: return read_simple(info.type, p, out);
  }
}

void block_values(const TypeInfo& info, const Block& block, float* out) {
  if (has_wide_head(info.type)) {
    for (int i = 0; i < BLOCK; ++i) {
      const int whole = block.q[i] - info.offset - block.zero;
      out[i] = block.wide * (is_byte_float(info.type) ? 256.0f * signed_byte_float(block.q[i]) : static_cast<float>(whole));
    }
    return;
  }
  const Scales scales = scales_of(info.type, block);
  for (int i = 0; i < BLOCK; ++i) {
    const int value = (info.table ? info.table[block.q[i]] : block.q[i]) - info.offset;
    out[i] = scales.d[i / 16] * static_cast<float>(value) + scales.m[i / 16];
  }
}

}  // namespace llmrun
